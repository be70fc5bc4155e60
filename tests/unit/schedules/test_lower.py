"""Generated lists are the drawn ones, run, and hold as many microbatches as promised; damage to them is named."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_run import TINY, Pretence, make_plan

from polyreme.errors import InputError
from polyreme.layout.owners import buckets
from polyreme.schedules.action import Action, Op, parse_action, parse_actions, print_actions
from polyreme.schedules.generate import computing_orders, num_in_flight
from polyreme.schedules.lower import lower
from polyreme.schedules.validate import validate
from polyreme.specs.fields import ScheduleName
from polyreme.specs.plan import Pipeline, Plan, Schedule, StageTime

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "schedules"
ONE_STAGE_EACH = [name for name in ScheduleName if name is not ScheduleName.ZB_V]
Lists = dict[int, list[Action]]


EQUAL = StageTime(f=1.0, i=1.0, w=1.0)
MOST_HELD: dict[ScheduleName, Callable[[int, int, int], int]] = {
    ScheduleName.GPIPE: lambda stages, stage, microbatches: microbatches,
    ScheduleName.ONE_F_ONE_B: lambda stages, stage, microbatches: min(microbatches, stages - stage),
    ScheduleName.INTERLEAVED: lambda stages, stage, microbatches: min(microbatches, 2 * (stages - stage) - 1),
    ScheduleName.ZB_H1: lambda stages, stage, microbatches: min(microbatches, stages),
    ScheduleName.ZB_H2: lambda stages, stage, microbatches: min(microbatches, 2 * stages - 1),
    ScheduleName.LIST: lambda stages, stage, microbatches: min(microbatches, stages),
}


def lists_of(schedule: ScheduleName, *, stages: int = 4, microbatches: int = 6, pipelines: int = 1) -> Lists:
    layers = (*[1] * (stages - 1), 16 - (stages - 1))
    pretence = Pretence(layers=layers, pipelines=pipelines, microbatches=microbatches, schedule=schedule)
    plan = make_plan(pretence)
    return lower(plan, buckets(plan, TINY))


@pytest.mark.parametrize("schedule", ONE_STAGE_EACH)
def test_a_schedule_of_four_stages_and_six_microbatches_is_the_drawn_one(schedule: ScheduleName) -> None:
    expected = (GOLDEN / f"{schedule}.txt").read_text(encoding="utf-8")
    lists = lists_of(schedule)
    assert print_actions(lists) == expected
    assert parse_actions(expected) == lists


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    schedule=st.sampled_from(ONE_STAGE_EACH),
    stages=st.integers(1, 6),
    microbatches=st.integers(1, 12),
    pipelines=st.integers(1, 2),
)
def test_generated_lists_run_and_hold_what_was_promised(
    schedule: ScheduleName, stages: int, microbatches: int, pipelines: int
) -> None:
    lists = lists_of(schedule, stages=stages, microbatches=microbatches, pipelines=pipelines)
    assert validate(lists) == []
    for rank, actions in lists.items():
        held = peak = 0
        for action in actions:
            held += (action.op is Op.FORWARD) - (action.op in (Op.BACKWARD, Op.WEIGHT_GRADIENT))
            peak = max(peak, held)
        assert held == 0
        assert peak <= MOST_HELD[schedule](stages, rank % stages, microbatches)
        if schedule in (ScheduleName.GPIPE, ScheduleName.ONE_F_ONE_B):
            assert peak == num_in_flight(schedule, stages, rank % stages, microbatches)
        assert sum(action.op is Op.FORWARD for action in actions) == microbatches
        assert actions[-1] == Action(Op.STEP)
        assert sum(action.op is Op.REDUCE for action in actions) == (1 if pipelines == 2 else 0)


def swap(rank: int, first: str, second: str) -> Callable[[Lists], None]:
    def change(lists: Lists) -> None:
        one, two = (lists[rank].index(parse_action(text)) for text in (first, second))
        lists[rank][one], lists[rank][two] = lists[rank][two], lists[rank][one]

    return change


def drop(rank: int, text: str) -> Callable[[Lists], None]:
    return lambda lists: lists[rank].remove(parse_action(text))


def insert(rank: int, position: int, text: str) -> Callable[[Lists], None]:
    return lambda lists: lists[rank].insert(position, parse_action(text))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (swap(3, "a.3.F2", "a.3.B2"), "rank 3: a.3.B2 comes before a.3.F2"),
        (swap(1, "a.1.RA0", "a.1.F0"), "rank 1: a.1.F0 comes before a.1.RA0"),
        (swap(1, "a.1.RG0", "a.1.B0"), "rank 1: a.1.B0 comes before a.1.RG0"),
        (swap(0, "a.0.F1", "a.0.SA1"), "rank 0: a.0.SA1 comes before a.0.F1"),
        (swap(2, "a.2.B0", "a.2.SG0"), "rank 2: a.2.SG0 comes before a.2.B0"),
        (swap(0, "a.0.SA1", "a.0.SA2"), "rank 0: a.0.SA2 comes before a.0.F2"),
        (drop(2, "a.2.F3"), "rank 2: a.2.B3 comes before a.2.F3"),
        (drop(2, "a.2.B3"), "rank 2: a.2.F3 has no backward"),
        (drop(1, "a.1.SA4"), "ranks [1, 2] name the messages a.2.RA in different orders"),
        (swap(1, "a.1.RG3", "a.1.RG4"), "rank 1: a.1.B3 comes before a.1.RG3"),
        (drop(1, "a.1.RA4"), "ranks [0, 1] name the messages a.1.RA in different orders"),
        (drop(1, "a.1.RA5"), "ranks [0, 1] name the messages a.1.RA in different orders"),
        (drop(0, "a.0.RG5"), "ranks [0, 1] name the messages a.0.RG in different orders"),
        (drop(3, "STEP"), "rank 3: STEP is missing"),
        (drop(3, "NORM"), "rank 3: NORM is missing"),
        (swap(3, "NORM", "STEP"), "rank 3: STEP comes before NORM"),
        (insert(1, 5, "a.1.F0"), "rank 1: a.1.F0 appears twice"),
        (insert(3, 4, "STEP"), "rank 3: actions follow STEP"),
        (insert(2, 3, "REDUCE0"), "REDUCE0 is entered by one rank alone"),
        (lambda lists: lists.pop(3), "messages a.2.RG are never sent"),
    ],
)
def test_each_kind_of_damage_is_named(damage: Callable[[Lists], None], problem: str) -> None:
    lists = lists_of(ScheduleName.ONE_F_ONE_B)
    damage(lists)
    assert problem in validate(lists)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), schedule=st.sampled_from(ONE_STAGE_EACH))
def test_no_dropped_or_repeated_action_passes(data: st.DataObject, schedule: ScheduleName) -> None:
    lists = lists_of(schedule, stages=3, microbatches=4, pipelines=2)
    rank = data.draw(st.sampled_from(sorted(lists)))
    position = data.draw(st.integers(0, len(lists[rank]) - 1))
    if data.draw(st.booleans()):
        del lists[rank][position]
    else:
        lists[rank].insert(data.draw(st.integers(0, len(lists[rank]))), lists[rank][position])
    assert validate(lists)


def with_pipeline(plan: Plan, change: Callable[[Pipeline], Pipeline]) -> Plan:
    return dataclasses.replace(plan, pipelines=(change(plan.pipelines[0]),))


def test_stages_that_share_only_some_of_their_ranks_are_refused() -> None:
    plan = make_plan(Pretence(layers=(8, 8)))
    first, second = plan.pipelines[0].stages
    joined = dataclasses.replace(first.groups[0], ranks=(0, 1), tp=2)
    stages = (dataclasses.replace(first, groups=(joined,)), second)
    with pytest.raises(InputError, match=r"stages 0 and 1 of pipeline a share ranks \[1\] but not all"):
        lower(with_pipeline(plan, lambda p: dataclasses.replace(p, stages=stages)), ())


@pytest.mark.parametrize(
    ("schedule", "places", "problem"),
    [
        (ScheduleName.ONE_F_ONE_B, [(0, 1)], "1f1b has one stage per worker"),
        (ScheduleName.ZB_H1, [(0, 2), (1,)], "zb-h1 has one stage per worker, here a worker has 2"),
        (ScheduleName.ZB_V, [(0, 2), (1, 3)], "zb-v folds the stages once"),
        (ScheduleName.ZB_V, [(0,), (1,)], "zb-v folds the stages once"),
    ],
)
def test_a_schedule_that_is_not_made_for_the_stages_is_refused(
    schedule: ScheduleName, places: list[tuple[int, ...]], problem: str
) -> None:
    times = [EQUAL] * sum(map(len, places))
    with pytest.raises(InputError, match=problem):
        computing_orders(Schedule(name=schedule), places, times, 4)


def test_every_wrong_line_of_an_action_text_is_named() -> None:
    text = "# polyreme.actions/1\n0: a.0.F0 STEP\n1 a.1.F0\n0: STEP\n\n2: a.2.X0 b STEP\nx: STEP\n"
    with pytest.raises(InputError) as caught:
        parse_actions(text, "lists.txt")
    assert [fault.source for fault in caught.value.faults] == [f"lists.txt:{line}" for line in (3, 4, 6, 6, 7)]
