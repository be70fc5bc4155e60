"""Whole training, several steps with the optimizer, against plain training in one process; copies stay equal."""

import dataclasses
import itertools
import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from gradient_worker import run_workers, training_main
from safetensors.torch import load_file
from small_run import NUM_LAYERS, NUM_TOKENS, inputs, pipeline, write_text
from torch import Tensor

from polyreme.models.build import StageLayers
from polyreme.models.llama import IGNORED_LABEL
from polyreme.specs.fields import Precision, ScheduleName
from polyreme.specs.job import AdamW, Decay, Evaluation
from polyreme.specs.plan import Pipeline
from polyreme.training.corpus import open_corpus
from polyreme.training.data import open_data
from polyreme.training.run import RunResult, run
from polyreme.training.runnable import Inputs

STEPS = 4
FP64 = Precision.FP64
ONE_F_ONE_B = ScheduleName.ONE_F_ONE_B


def unequal() -> list[Pipeline]:
    return [
        pipeline("a", [3], 5, ONE_F_ONE_B, precision=FP64),
        pipeline("b", [2, 4], 3, ScheduleName.GPIPE, base=2, microbatch_sequences=1, precision=FP64),
    ]


def shared() -> list[Pipeline]:
    groups = [[(2, 1), (1, 1)], [(3, 1)], [(1, 1), (2, 1)]]
    return [pipeline("a", [2, 4], 3, ONE_F_ONE_B, microbatch_sequences=3, precision=FP64, groups=groups)]


def in_one_process(given: Inputs) -> tuple[list[float], dict[str, Tensor]]:
    """(loss of each step, final weights) of plain training on the whole batch, in fp64."""
    job, batch = given.job, given.plan.batch
    layers = StageLayers(given.model, 0, NUM_LAYERS, job.seed, torch.float64)
    corpus, adamw = open_corpus(job.data, given.base), job.optimizer
    groups = [
        {"params": [p for p in layers.parameters() if p.dim() > 1], "weight_decay": adamw.weight_decay},
        {"params": [p for p in layers.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    betas = (adamw.beta1, adamw.beta2)
    optimizer = torch.optim.AdamW(groups, lr=adamw.learning_rate, betas=betas, eps=adamw.eps)
    losses = []
    for step in range(job.steps):
        tokens = torch.zeros((batch.sequences, NUM_TOKENS), dtype=torch.int64)
        labels = torch.full_like(tokens, IGNORED_LABEL)
        for row in range(batch.sequences):
            content = list(corpus.read(corpus.window(job.seed, step, row, NUM_TOKENS)))
            tokens[row, : len(content) - 1] = torch.tensor(content[:-1])
            labels[row, : len(content) - 1] = torch.tensor(content[1:])
        loss = layers(tokens, labels) / int((labels != IGNORED_LABEL).sum())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layers.parameters(), adamw.clip_norm or math.inf)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {name: parameter.detach() for name, parameter in layers.named.items()}


def copies(given: Inputs, run_dir: Path) -> dict[str, list[Tensor]]:
    """Final weights of every rank that holds them."""
    run_workers(given, run_dir, training_main)
    found: dict[str, list[Tensor]] = defaultdict(list)
    for path in sorted(run_dir.glob("held-*.safetensors")):
        for name, weight in load_file(path).items():
            found[name].append(weight)
    return found


def saved(result: RunResult) -> dict[str, Tensor]:
    """Final weights as the run saved them, each in one file."""
    found: dict[str, Tensor] = {}
    for path in sorted((result.run_dir / "weights").glob("*.safetensors")):
        weights = load_file(path)
        assert not weights.keys() & found.keys()
        found |= weights
    return found


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("pipelines", [unequal(), shared()], ids=["unequal pipelines", "shared stages"])
def test_training_in_fp64_follows_plain_training(pipelines: list[Pipeline], *, tied: bool, tmp_path: Path) -> None:
    data = write_text(tmp_path / "text")
    given = inputs(pipelines, data, precision=FP64, steps=STEPS, tied=tied)
    losses, weights = in_one_process(given)
    result = run(given, tmp_path / "run")
    assert [step.loss for step in result.steps] == pytest.approx(losses, rel=1e-10)
    held, written = copies(given, tmp_path / "again"), saved(result)
    assert held.keys() == written.keys() == weights.keys()
    for name, of_ranks in held.items():
        assert all(torch.equal(of_ranks[0], copy) for copy in of_ranks), f"{name} differs between its owners"
        assert torch.equal(of_ranks[0], written[name])
        assert (of_ranks[0] - weights[name]).norm() <= 1e-7 * weights[name].norm(), name
    assert any(len(of_ranks) > 1 for of_ranks in held.values())


def test_training_by_unequal_pipelines_is_bitwise_repeatable(tmp_path: Path) -> None:
    given = inputs(unequal(), write_text(tmp_path / "text"), precision=FP64, steps=STEPS)
    first, second = (run(given, tmp_path / name) for name in ("one", "two"))
    assert [step.loss for step in first.steps] == [step.loss for step in second.steps]
    ours, theirs = saved(first), saved(second)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_evaluation_after_training_steps_is_the_loss_of_one_process(tmp_path: Path) -> None:
    """Held-out sequences, no multiple of the batch, over unequal pipelines; training goes on as without."""
    given = inputs(unequal(), write_text(tmp_path / "text"), precision=FP64, steps=STEPS)
    wanted = Evaluation(every_steps=3, sequences=17)
    job = dataclasses.replace(given.job, evaluation=wanted)
    evaluated = run(dataclasses.replace(given, job=job), tmp_path / "with")
    assert [step.evaluation_loss is not None for step in evaluated.steps] == [False, False, True, True]
    source = open_data(job, given.base, given.model.vocab_size).evaluation
    assert source is not None
    layers = StageLayers(given.model, 0, NUM_LAYERS, job.seed, torch.float64)
    held = saved(evaluated)
    with torch.no_grad():
        for name, parameter in layers.named.items():
            parameter.copy_(held[name])
        loss_sum, targets = 0.0, 0
        for number in range(wanted.sequences):
            tokens = source.read_sequence(job.seed, 0, number, wanted.sequences, NUM_TOKENS)
            loss_sum += float(layers(torch.tensor([tokens[:-1].tolist()]), torch.tensor([tokens[1:].tolist()])))
            targets += len(tokens) - 1
    assert evaluated.steps[-1].evaluation_loss == pytest.approx(loss_sum / targets, rel=1e-12)


@pytest.mark.parametrize("decay", list(Decay))
def test_the_learning_rate_warms_up_and_falls_to_its_minimum(decay: Decay) -> None:
    settings = AdamW(learning_rate=1.0, warmup_steps=4, decay=decay, min_learning_rate=0.1)
    rates = [settings.learning_rate_at(step, 14) for step in range(14)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(one >= other for one, other in itertools.pairwise(rates[4:]))
    assert rates[-1] == pytest.approx(1.0 if decay is Decay.CONSTANT else 0.1)
    cosine = 0.55 + 0.45 * math.cos(math.pi * 5 / 9)
    middle = {Decay.CONSTANT: 1.0, Decay.LINEAR: 0.1 + 0.9 * 4 / 9, Decay.COSINE: cosine}
    assert rates[9] == pytest.approx(middle[decay])
