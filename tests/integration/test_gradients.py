"""Gradients of real pipelines of processes against plain autograd in one process.

Rule: per parameter norm(g - g64) <= 3 max(norm(g32 - g64), eps32 norm(g64)), g64 and g32 from one process in fp64 and
fp32; pipelines in fp64 agree to 1e-10.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from gradient_worker import gradient_main, run_workers
from safetensors.torch import load_file
from small_run import NUM_LAYERS, NUM_TOKENS, inputs, pipeline, tiny_gpt, write_text
from torch import Tensor

from polyreme.layout.owners import holders
from polyreme.models.build import StageLayers, held_part
from polyreme.models.dtypes import DTYPES
from polyreme.models.llama import IGNORED_LABEL
from polyreme.specs.fields import Precision, Recompute, ScheduleName
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Pipeline
from polyreme.training.corpus import open_corpus
from polyreme.training.run import Inputs

Gradients = dict[str, Tensor]
FP64 = Precision.FP64
EPS32 = torch.finfo(torch.float32).eps
ONE_STAGE_EACH = [name for name in ScheduleName if name is not ScheduleName.ZB_V]
CUTS = {1: [], 2: [2], 3: [1, 4], 4: [2, 3, 5]}


def in_one_process(given: Inputs, precision: Precision) -> Gradients:
    """The oracle: the whole model, the whole batch, one loss divided by the tokens that count."""
    job, plan = given.job, given.plan
    layers = StageLayers(given.model, 0, NUM_LAYERS, job.seed, DTYPES[precision])
    corpus = open_corpus(job.data, given.base)
    tokens = torch.zeros((plan.batch.sequences, NUM_TOKENS), dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED_LABEL)
    for row in range(plan.batch.sequences):
        window = corpus.window(job.seed, 0, row, NUM_TOKENS)
        content = list(corpus.read(window))
        tokens[row, : len(content) - 1] = torch.tensor(content[:-1])
        labels[row, : len(content) - 1] = torch.tensor(content[1:])
    counted = (labels != IGNORED_LABEL).sum(dim=1)
    assert len(set(counted.tolist())) > 1, "the batch was meant to be ragged"
    (layers(tokens, labels) / int(counted.sum())).backward()
    return {name: parameter.grad for name, parameter in layers.named.items() if parameter.grad is not None}


def in_a_pipeline(given: Inputs, run_dir: Path) -> list[Gradients]:
    """Gradients that each rank holds after one step of real worker processes."""
    run_workers(given, run_dir, gradient_main)
    return [load_file(run_dir / f"gradients-{rank}.safetensors") for rank in range(len(given.plan.workers))]


def check(given: Inputs, run_dir: Path) -> None:
    """Every parameter is held by some rank, every holder's gradient meets the rule, and all know the same norm."""
    exact = in_one_process(given, Precision.FP64)
    single = in_one_process(given, Precision.FP32)
    norm = sum(float(gradient.square().sum()) for gradient in exact.values()) ** 0.5
    held = in_a_pipeline(given, run_dir)
    parts = holders(given.plan, given.model)
    norms = [gradients.pop("norm").item() for gradients in held]
    assert len(set(norms)) == 1
    assert norms[0] == pytest.approx(norm, rel=1e-10 if given.job.precision is Precision.FP64 else 1e-5)
    assert set().union(*held) == set(exact)
    for rank, gradients in enumerate(held):
        for name, gradient in gradients.items():
            due, plain = (held_part(whole[name], parts[name][rank]) for whole in (exact, single))
            error = (gradient.double() - due).norm()
            if given.job.precision is Precision.FP64:
                assert error <= 1e-10 * due.norm(), (rank, name)
            else:
                allowed = 3 * max((plain.double() - due).norm(), EPS32 * due.norm())
                assert error <= allowed, (rank, name, float(error), float(allowed))


def run_case(
    pipelines: Sequence[Pipeline],
    tmp_path: Path,
    precision: Precision,
    *,
    tied: bool = False,
    model: ModelSpec | None = None,
) -> None:
    data = write_text(tmp_path / "text")
    check(inputs(pipelines, data, precision=precision, tied=tied, model=model), tmp_path / "run")


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP64])
@pytest.mark.parametrize("schedule", ONE_STAGE_EACH)
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_gradients_of_a_pipeline_equal_those_of_one_process(
    num_stages: int, schedule: ScheduleName, precision: Precision, tmp_path: Path
) -> None:
    microbatches = 3 if num_stages == 4 else 5  # fewer microbatches than stages, too
    run_case([pipeline("a", CUTS[num_stages], microbatches, schedule, precision=precision)], tmp_path, precision)


@pytest.mark.parametrize("schedule", ONE_STAGE_EACH)
@pytest.mark.parametrize("microbatches", [1, 2, 9])
def test_gradients_do_not_depend_on_the_number_of_microbatches(
    microbatches: int, schedule: ScheduleName, tmp_path: Path
) -> None:
    one = pipeline("a", CUTS[3], microbatches, schedule, microbatch_sequences=4, precision=Precision.FP64)
    run_case([one], tmp_path, Precision.FP64)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP64])
def test_gradients_of_two_unequal_pipelines_are_summed_over_their_owners(
    precision: Precision, *, tied: bool, tmp_path: Path
) -> None:
    pipelines = [
        pipeline("a", [3], 5, ScheduleName.ONE_F_ONE_B, precision=precision),
        pipeline("b", [2, 4], 3, ScheduleName.GPIPE, base=2, microbatch_sequences=1, precision=precision),
    ]
    run_case(pipelines, tmp_path, precision, tied=tied)


def test_gradients_of_a_tied_embedding_are_summed_over_first_and_last_stage(tmp_path: Path) -> None:
    one = pipeline("a", [3], 4, ScheduleName.ONE_F_ONE_B, precision=Precision.FP64)
    run_case([one], tmp_path, Precision.FP64, tied=True)


def test_gradients_are_right_where_groups_of_a_stage_take_unequal_shares(tmp_path: Path) -> None:
    groups = [[(2, 1), (1, 1)], [(3, 1)], [(1, 1), (2, 1)]]
    one = pipeline(
        "a", [2, 4], 3, ScheduleName.ONE_F_ONE_B, microbatch_sequences=3, precision=Precision.FP64, groups=groups
    )
    run_case([one], tmp_path, Precision.FP64)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "schedule", [ScheduleName.GPIPE, ScheduleName.INTERLEAVED, ScheduleName.ZB_V, ScheduleName.LIST]
)
def test_gradients_are_right_where_the_stages_are_folded_once(
    schedule: ScheduleName, *, tied: bool, tmp_path: Path
) -> None:
    one = pipeline("a", [1, 3, 4], 5, schedule, precision=FP64, places=[0, 1, 1, 0])
    run_case([one], tmp_path, FP64, tied=tied)


@pytest.mark.parametrize("schedule", [ScheduleName.INTERLEAVED, ScheduleName.LIST])
def test_gradients_are_right_where_workers_hold_unequal_numbers_of_stages(
    schedule: ScheduleName, tmp_path: Path
) -> None:
    one = pipeline("a", [1, 2, 3, 5], 5, schedule, precision=FP64, places=[0, 1, 0, 3, 0])
    run_case([one], tmp_path, FP64)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP64])
def test_gradients_are_right_where_each_stage_has_its_own_tensor_degree(
    precision: Precision, *, tied: bool, tmp_path: Path
) -> None:
    groups = [[(2, 2)], [(1, 1), (1, 2)], [(2, 2)]]
    pipelines = [
        pipeline("a", [2, 4], 3, ScheduleName.ZB_H1, precision=precision, groups=groups),
        pipeline("b", [3], 2, ScheduleName.ONE_F_ONE_B, base=7, precision=precision),
    ]
    run_case(pipelines, tmp_path, precision, tied=tied)


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
@pytest.mark.parametrize("schedule", [ScheduleName.ONE_F_ONE_B, ScheduleName.ZB_H1])
def test_gradients_are_right_with_recompute(schedule: ScheduleName, recompute: Recompute, tmp_path: Path) -> None:
    groups = [[(2, 1)], [(2, 2)]]
    one = pipeline("a", [3], 4, schedule, precision=FP64, groups=groups, recompute=recompute)
    run_case([one], tmp_path, FP64)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP64])
def test_gradients_of_a_gpt_are_right_where_each_stage_has_its_own_tensor_degree(
    precision: Precision, *, tied: bool, tmp_path: Path
) -> None:
    groups = [[(2, 2)], [(1, 1), (1, 2)], [(2, 2)]]
    pipelines = [
        pipeline("a", [2, 4], 3, ScheduleName.ZB_H1, precision=precision, groups=groups),
        pipeline("b", [3], 2, ScheduleName.ONE_F_ONE_B, base=7, precision=precision),
    ]
    run_case(pipelines, tmp_path, precision, model=tiny_gpt(tied=tied))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("schedule", [ScheduleName.INTERLEAVED, ScheduleName.ZB_V])
def test_gradients_of_a_gpt_are_right_where_its_tensor_parallel_stages_are_folded(
    schedule: ScheduleName, *, tied: bool, tmp_path: Path
) -> None:
    groups = [[(2, 2)]] * 4
    one = pipeline("a", [1, 3, 4], 5, schedule, precision=FP64, groups=groups, places=[0, 1, 1, 0])
    run_case([one], tmp_path, FP64, model=tiny_gpt(tied=tied))


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
def test_gradients_of_a_gpt_are_right_with_recompute(recompute: Recompute, tmp_path: Path) -> None:
    groups = [[(2, 1)], [(2, 2)]]
    one = pipeline("a", [3], 4, ScheduleName.ZB_H1, precision=FP64, groups=groups, recompute=recompute)
    run_case([one], tmp_path, FP64, model=tiny_gpt())
