"""Orders of the generators: as good as published closed forms on equal stages, within every cap, free of deadlock."""

import random
from collections.abc import Sequence

import pytest
from random_fleets import random_places

from polyreme.schedules.action import Action, Op
from polyreme.schedules.generate import computing_orders, most_held
from polyreme.schedules.greedy import Work
from polyreme.schedules.lower import with_messages
from polyreme.schedules.validate import validate
from polyreme.simulator.replay import Crossing, StepCosts, replay
from polyreme.specs.fields import ScheduleName
from polyreme.specs.plan import Schedule, StageTime

Places = Sequence[tuple[int, ...]]
EQUAL = StageTime(f=1.0, i=1.0, w=1.0)
H1, H2, ZB_V = ScheduleName.ZB_H1, ScheduleName.ZB_H2, ScheduleName.ZB_V
ONE_F_ONE_B, INTERLEAVED, LIST = ScheduleName.ONE_F_ONE_B, ScheduleName.INTERLEAVED, ScheduleName.LIST


def lists_of(orders: list[list[Work]]) -> dict[int, list[Action]]:
    last = max(stage for order in orders for _, stage, _ in order)
    return {
        rank: [*with_messages(order, "a", last), Action(Op.NORM), Action(Op.STEP)] for rank, order in enumerate(orders)
    }


def step_s(orders: list[list[Work]], places: Places, times: Sequence[StageTime]) -> float:
    rank = {stage: number for number, stages in enumerate(places) for stage in stages}
    costs = StepCosts(
        stage={("a", stage): time for stage, time in enumerate(times)},
        crossings={("a", stage): [Crossing(rank[stage], rank[stage + 1], 0.0, 0.0)] for stage in range(len(times) - 1)},
        reduce_s=[],
        reduce_owners=[],
        norm_s=0.0,
        update_s=dict.fromkeys(range(len(places)), 0.0),
    )
    return max(spans[-1].stop_s for spans in replay(lists_of(orders), costs).values())


def one_each(num: int) -> Places:
    return [(stage,) for stage in range(num)]


def in_turn(num: int, stages_each: int) -> Places:
    return [tuple(num * turn + place for turn in range(stages_each)) for place in range(num)]


def folded(num: int) -> Places:
    return [(place, 2 * num - 1 - place) for place in range(num)]


@pytest.mark.parametrize("num_places", [2, 3, 4, 8])
@pytest.mark.parametrize("per_place", [1, 2, 4])
def test_equal_stages_reach_the_published_step_times(num_places: int, per_place: int) -> None:
    """Units of a forward, an input and a weight gradient each. Bubbles: 1F1B 3 (p - 1), interleaved 3 (p - 1) / v,
    ZB-H1 and the fill of ZB-H2 p - 1 (arXiv 2401.10241, table 1), the fill of ZB-V (p - 1) / 2 (arXiv 2405.15362)."""
    number = num_places * per_place
    for name, places, share, bubble, slack in (
        (ONE_F_ONE_B, one_each(num_places), 1, 3 * (num_places - 1), 0),
        (INTERLEAVED, in_turn(num_places, 2), 2, 3 * (num_places - 1) / 2, 0),
        (INTERLEAVED, in_turn(num_places, 3), 3, num_places - 1, 0),
        (H1, one_each(num_places), 1, num_places - 1, 2),
        (H2, one_each(num_places), 1, num_places - 1, 0),
        (ZB_V, folded(num_places), 2, (num_places - 1) / 2, 1.5),
    ):
        times = [EQUAL] * (num_places * share)
        took = step_s(computing_orders(Schedule(name=name), places, times, number), places, times) / share
        assert 3 * number + bubble <= took <= 3 * number + bubble + slack, name


@pytest.mark.parametrize("num_microbatches", [1, 3, 5, 9, 17])
@pytest.mark.parametrize("stages_each", [2, 3])
def test_interleaving_loses_nothing_where_microbatches_do_not_fill_the_rounds(
    num_microbatches: int, stages_each: int
) -> None:
    places = in_turn(4, stages_each)
    times = [EQUAL] * (4 * stages_each)
    took = step_s(computing_orders(Schedule(name=INTERLEAVED), places, times, num_microbatches), places, times)
    if num_microbatches >= 4:
        assert took == 3 * num_microbatches * stages_each + 3 * 3
    else:
        assert took == 3 * 4 * stages_each + 3 * (num_microbatches - 1)


def test_zero_bubble_schedules_hold_no_more_than_their_papers_say() -> None:
    for num in (2, 4, 8):
        for name, places, most in (
            (H1, one_each(num), num),
            (H2, one_each(num), 2 * num - 1),
            (ZB_V, folded(num), 2 * num),
        ):
            times = [EQUAL] * sum(map(len, places))
            for order in computing_orders(Schedule(name=name), places, times, 4 * num):
                assert most_held(order, dict.fromkeys(range(len(times)), 1.0)) <= most


def test_random_orders_compute_everything_once_run_under_both_assumptions_and_keep_the_cap() -> None:
    draw = random.Random(3)  # noqa: S311
    for _ in range(300):
        places = random_places(draw)
        num_stages = sum(map(len, places))
        times = [StageTime(f=draw.uniform(0, 3), i=draw.uniform(0, 3), w=draw.uniform(0, 3)) for _ in range(num_stages)]
        in_flight = tuple(draw.randint(1, 4) for _ in range(num_stages))
        number = draw.randint(1, 12)
        for schedule in (Schedule(name=INTERLEAVED), Schedule(name=LIST, in_flight=in_flight)):
            orders = computing_orders(schedule, places, times, number)
            done = [(op, stage, microbatch) for order in orders for op, stage, microbatch in order]
            assert len(set(done)) == len(done)
            for stage in range(num_stages):
                forwards = sorted(microbatch for op, s, microbatch in done if s == stage and op is Op.FORWARD)
                assert forwards == list(range(number))
            assert validate(lists_of(orders)) == []
            if schedule.name is LIST:
                for stages, order in zip(places, orders, strict=True):
                    cap = sum(in_flight[stage] for stage in stages)
                    assert most_held(order, dict.fromkeys(range(num_stages), 1.0)) <= cap, (places, in_flight, number)


def test_a_list_beats_1f1b_where_stages_are_unequal() -> None:
    """What the weight gradients gain: they fill the gaps that slower neighbours leave."""
    draw = random.Random(5)  # noqa: S311
    gains = []
    for _ in range(40):
        num = draw.randint(2, 6)
        times = [StageTime(f=(x := draw.uniform(0.5, 2)), i=x, w=x) for _ in range(num)]
        places = one_each(num)
        plain, listed = (
            step_s(computing_orders(Schedule(name=name), places, times, 3 * num), places, times)
            for name in (ONE_F_ONE_B, LIST)
        )
        gains.append(plain / listed)
        assert listed <= plain * 1.02
    assert sorted(gains)[len(gains) // 2] > 1.05
