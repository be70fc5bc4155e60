"""Gradients of real pipelines of processes against plain autograd in one process: see `gradient_rule`."""

import dataclasses
from pathlib import Path

import pytest
from gradient_rule import check, run_case
from small_run import inputs, pipeline, tiny_gpt, write_text

from polyreme.specs.fields import Precision, Recompute, ScheduleName, Transport
from polyreme.specs.plan import EdgeSetting

FP64 = Precision.FP64
ONE_STAGE_EACH = [name for name in ScheduleName if name is not ScheduleName.ZB_V]
CUTS = {1: [], 2: [2], 3: [1, 4], 4: [2, 3, 5]}


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


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_gradients_in_16_bit_add_up_in_fp32(precision: Precision, *, tied: bool, tmp_path: Path) -> None:
    pipelines = [
        pipeline("a", [2, 4], 4, ScheduleName.ZB_H1, precision=precision),
        pipeline("b", [3], 2, ScheduleName.ONE_F_ONE_B, base=3, precision=precision, groups=[[(2, 2)], [(2, 1)]]),
    ]
    run_case(pipelines, tmp_path, precision, tied=tied)


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


@pytest.mark.parametrize("transport", list(Transport))
def test_gradients_do_not_depend_on_the_transport_of_an_edge(transport: Transport, tmp_path: Path) -> None:
    """The first boundary by the given transport, the second by the default one."""
    groups = [[(1, 1), (1, 2)], [(2, 1)], [(2, 2)]]
    one = pipeline("a", [2, 4], 4, ScheduleName.ZB_H1, precision=FP64, groups=groups)
    given = inputs([one], write_text(tmp_path / "text"), precision=FP64)
    edge = EdgeSetting(source=("a", 0), target=("a", 1), transport=transport)
    check(dataclasses.replace(given, plan=dataclasses.replace(given.plan, edges=(edge,))), tmp_path / "run")
