"""Models that a person gives as a list of nn.Module: gradients, weights and refusals."""

import dataclasses
import json
from pathlib import Path

import own_blocks
import pytest
import torch
from gradient_worker import gradient_main, run_workers
from safetensors.torch import load_file
from small_run import NUM_TOKENS, inputs, pipeline, write_text

from polyreme.cli.main import main
from polyreme.errors import InputError
from polyreme.models.foreign import ForeignLayers, describe, load_function, seeded
from polyreme.models.llama import IGNORED_LABEL
from polyreme.specs.fields import Precision, Recompute, ScheduleName
from polyreme.specs.plan import Pipeline
from polyreme.training.corpus import open_corpus
from polyreme.training.run import run
from polyreme.training.runnable import Inputs, check_runnable

FP64 = Precision.FP64
BASE = Path(own_blocks.__file__).parent


def given_for(function: str, pipelines: list[Pipeline], tmp_path: Path) -> Inputs:
    model = describe(f"own_blocks.py:{function}", BASE, None)
    given = inputs(pipelines, write_text(tmp_path / "text"), precision=FP64, model=model)
    return dataclasses.replace(given, code_base=BASE)


def in_one_process(given: Inputs) -> dict[str, torch.Tensor]:
    """Gradients by plain autograd over the whole list."""
    job, plan = given.job, given.plan
    assert given.model.code is not None
    blocks = seeded(load_function(given.model.code, BASE), job.seed)
    for block in blocks:
        block.double()
    corpus = open_corpus(job.data, given.base)
    tokens = torch.zeros((plan.batch.sequences, NUM_TOKENS), dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED_LABEL)
    for row in range(plan.batch.sequences):
        content = list(corpus.read(corpus.window(job.seed, 0, row, NUM_TOKENS)))
        tokens[row, : len(content) - 1] = torch.tensor(content[:-1])
        labels[row, : len(content) - 1] = torch.tensor(content[1:])
    value = tokens
    for block in blocks[:-1]:
        value = block(value)
    if isinstance(blocks[-1], own_blocks.LossHead) or type(blocks[-1]).__name__ == "LossHead":
        loss = blocks[-1](value, labels)
    else:
        logits = blocks[-1](value).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
    (loss / int((labels != IGNORED_LABEL).sum())).backward()
    named: dict[str, torch.Tensor] = {}
    for number, block in enumerate(blocks):
        for name, parameter in block.named_parameters():
            if not any(parameter.grad is held for held in named.values()):
                assert parameter.grad is not None
                named[f"blocks.{number}.{name}"] = parameter.grad
    return named


PLANS = {
    "1f1b": [pipeline("a", [2, 4], 4, ScheduleName.ONE_F_ONE_B, precision=FP64)],
    "zb-h1": [pipeline("a", [2, 4], 4, ScheduleName.ZB_H1, precision=FP64)],
    "folded": [pipeline("a", [1, 3, 4], 5, ScheduleName.ZB_V, precision=FP64, places=[0, 1, 1, 0])],
    "unequal pipelines, groups, recompute": [
        pipeline("a", [3], 3, ScheduleName.ZB_H1, precision=FP64, recompute=Recompute.FULL),
        pipeline(
            "b",
            [2, 4],
            2,
            ScheduleName.ONE_F_ONE_B,
            base=2,
            precision=FP64,
            groups=[[(2, 1)], [(1, 1), (1, 1)], [(2, 1)]],
        ),
    ],
}


@pytest.mark.parametrize("function", ["plain", "tied", "huggingface"])
@pytest.mark.parametrize("plan", PLANS)
def test_gradients_of_own_blocks_equal_those_of_one_process(plan: str, function: str, tmp_path: Path) -> None:
    given = given_for(function, PLANS[plan], tmp_path)
    due = in_one_process(given)
    run_workers(given, tmp_path / "run", gradient_main)
    held = [load_file(tmp_path / "run" / f"gradients-{rank}.safetensors") for rank in range(len(given.plan.workers))]
    tolerance = 1e-5 if function == "huggingface" else 1e-10  # its rotary table and norms compute in fp32
    assert set().union(*held) == {*due, "norm"}
    for gradients in held:
        gradients.pop("norm")
        for name, gradient in gradients.items():
            assert (gradient - due[name]).norm() <= tolerance * due[name].norm(), name


def test_own_blocks_train_save_and_start_again_from_what_was_saved(tmp_path: Path) -> None:
    given = given_for("tied", PLANS["unequal pipelines, groups, recompute"], tmp_path)
    given = dataclasses.replace(given, job=dataclasses.replace(given.job, steps=3))
    result = run(given, tmp_path / "one")
    assert result.steps[-1].loss < result.steps[0].loss
    job = dataclasses.replace(given.job, initial_weights=str((tmp_path / "one" / "weights").resolve()))
    again = run(dataclasses.replace(given, job=job), tmp_path / "two")
    longer = run(dataclasses.replace(given, job=dataclasses.replace(given.job, steps=4)), tmp_path / "three")
    assert again.steps[0].loss != result.steps[0].loss
    assert longer.steps[3].loss < longer.steps[0].loss
    assert not (tmp_path / "one" / "weights" / "config.json").exists()


def test_code_is_not_run_unless_it_is_allowed(tmp_path: Path) -> None:
    given = dataclasses.replace(given_for("plain", PLANS["1f1b"], tmp_path), code_base=None)
    with pytest.raises(InputError, match=r"the model would run own_blocks\.py:plain; add --allow-code"):
        check_runnable(given)
    marker = tmp_path / "net.py"
    marker.write_text("raise SystemExit('it ran')", encoding="utf-8")
    assert main(["import", "blocks", f"{marker}:blocks", "-o", str(tmp_path / "model.json")]) == 2
    assert not (tmp_path / "model.json").exists()


def test_code_that_has_changed_since_it_was_recorded_is_named() -> None:
    model = describe("own_blocks.py:plain", BASE, None)
    with pytest.raises(InputError) as caught:
        ForeignLayers(model, 0, 2, 0, own_blocks.other)  # type: ignore[arg-type]
    problems = [fault.problem for fault in caught.value.faults]
    assert problems[0] == "6 are recorded, 5 made"
    assert "blocks.4.weight is recorded as None, the code makes (300, 16)" in problems


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("absent.py:blocks", "does not exist"),
        ("own_blocks.py", "names no function"),
        ("own_blocks.py:absent", "cannot be loaded: AttributeError"),
        ("own_blocks.py:HIDDEN", "is no function"),
        ("own_blocks.py:broken", "raised RuntimeError: by hand"),
        ("own_blocks.py:nothing", "of which int, str are no modules"),
    ],
)
def test_code_that_cannot_be_used_is_an_input_error(code: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        describe(code, BASE, None)


def test_the_example_is_recorded_as_it_is_and_runs(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "blocks"
    for name in ("net.py", "cluster.yaml", "job.yaml"):
        (tmp_path / name).write_text((example / name).read_text(encoding="utf-8"), encoding="utf-8")
    recorded = tmp_path / "model.json"
    assert main(["import", "blocks", str(tmp_path / "net.py:blocks"), "--allow-code", "-o", str(recorded)]) == 0
    stated = json.loads((example / "model.json").read_text(encoding="utf-8"))
    assert json.loads(recorded.read_text(encoding="utf-8")) == stated
    command = ["train", str(tmp_path / "job.yaml"), "--allow-code", "--steps", "2", "--runs", str(tmp_path / "runs")]
    assert main(command) == 0
