"""The same seed and plan give bitwise the same run; the plan changes neither data nor, but for rounding, the result."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_run import inputs, pipeline, write_text

from polyreme.layout.layers import num_layers, parameters
from polyreme.specs.fields import ScheduleName
from polyreme.training.run import RunResult, run

STEPS = 4


def train(tmp_path: Path, name: str, cuts: list[int], schedule: ScheduleName) -> RunResult:
    data = write_text(tmp_path / "text")
    return run(inputs([pipeline("a", cuts, 4, schedule)], data, steps=STEPS), tmp_path / name)


def weights(result: RunResult) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted((result.run_dir / "weights").glob("*.safetensors")):
        found |= load_file(path)
    return found


def test_the_same_seed_and_plan_give_bitwise_the_same_losses_and_weights(tmp_path: Path) -> None:
    first, second = (train(tmp_path, name, [2, 4], ScheduleName.ONE_F_ONE_B) for name in ("one", "two"))
    assert [step.loss for step in first.steps] == [step.loss for step in second.steps]
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_another_plan_gives_the_same_losses_but_for_rounding(tmp_path: Path) -> None:
    first = train(tmp_path, "one", [2, 4], ScheduleName.ONE_F_ONE_B)
    second = train(tmp_path, "two", [3], ScheduleName.GPIPE)
    assert [step.loss for step in first.steps] == pytest.approx([step.loss for step in second.steps], rel=1e-5)
    assert first.steps[-1].loss < first.steps[0].loss


def test_final_weights_are_one_checkpoint_with_every_parameter_once(tmp_path: Path) -> None:
    result = train(tmp_path, "run", [1, 3, 5], ScheduleName.ONE_F_ONE_B)
    model = json.loads((result.run_dir / "model.json").read_text(encoding="utf-8"))
    index = json.loads((result.run_dir / "weights" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    given = inputs([pipeline("a", [], 4, ScheduleName.GPIPE)], write_text(tmp_path / "text")).model
    expected = {p.name: p.shape for layer in range(num_layers(given)) for p in parameters(given, layer)}
    assert index["weight_map"].keys() == expected.keys()
    for name, file in index["weight_map"].items():
        assert tuple(load_file(result.run_dir / "weights" / file)[name].shape) == expected[name]
    assert index["metadata"]["total_size"] == sum(w.numel() * w.element_size() for w in weights(result).values())
    assert model["name"] == "tiny"


def test_a_run_folder_holds_what_is_needed_to_repeat_it(tmp_path: Path) -> None:
    result = train(tmp_path, "run", [3], ScheduleName.GPIPE)
    names = {path.name for path in result.run_dir.iterdir()}
    assert {"config.json", "model.json", "cluster.json", "plan.json", "environment.json", "metrics.jsonl"} <= names
    assert {"events", "logs", "weights", "memory.json", "result.json"} <= names
    environment = json.loads((result.run_dir / "environment.json").read_text(encoding="utf-8"))
    assert {"seed", "data_digest", "torch", "python"} <= environment.keys()
    lines = (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))
