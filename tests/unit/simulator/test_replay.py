"""The replay against closed forms and a longest-path oracle."""

import dataclasses
import itertools
import random

import pytest

from polyreme.schedules.action import Action, Op
from polyreme.schedules.generate import Places, computing_orders
from polyreme.schedules.lower import with_messages
from polyreme.simulator.replay import Crossing, StepCosts, Timed, replay
from polyreme.specs.fields import ScheduleName
from polyreme.specs.plan import Schedule, StageTime

Lists = dict[int, list[Action]]


SCHEDULES = [name for name in ScheduleName if name is not ScheduleName.ZB_V]


def lists_of(schedule: ScheduleName, num_stages: int, num_microbatches: int, places: Places | None = None) -> Lists:
    """What lowering makes of one pipeline with a stage per rank, or with `places`."""
    places = places or [(stage,) for stage in range(num_stages)]
    times = [StageTime(f=1.0, i=1.0, w=1.0)] * num_stages
    orders = computing_orders(Schedule(name=schedule), places, times, num_microbatches)
    return {
        rank: [*with_messages(order, "a", num_stages - 1), Action(Op.NORM), Action(Op.STEP)]
        for rank, order in enumerate(orders)
    }


def costs_of(
    times: list[tuple[float, float]],
    boundaries: list[tuple[float, float]] | None = None,
    places: Places | None = None,
) -> StepCosts:
    places = places or [(stage,) for stage in range(len(times))]
    boundaries = boundaries or [(0.0, 0.0)] * (len(times) - 1)
    rank = {stage: rank for rank, stages in enumerate(places) for stage in stages}
    return StepCosts(
        stage={("a", index): StageTime(f=f, i=0.4 * b, w=0.6 * b) for index, (f, b) in enumerate(times)},
        crossings={
            ("a", index): [Crossing(rank[index], rank[index + 1], *boundary)]
            for index, boundary in enumerate(boundaries)
        },
        reduce_s=[],
        reduce_owners=[],
        norm_s=0.0,
        update_s=dict.fromkeys(range(len(places)), 0.0),
    )


def length(done: dict[int, list[Timed]]) -> float:
    return max(spans[-1].stop_s for spans in done.values())


def longest_path(lists: Lists, costs: StepCosts) -> float:
    """End of the last action by relaxing all dependencies until nothing changes; messages leave a link in order."""
    before = {Op.RECV_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECV_GRADIENT: (Op.SEND_GRADIENT, 1)}
    start = {(rank, action): 0.0 for rank, actions in lists.items() for action in actions}
    leaves: dict[Action, float] = {}

    def duration(action: Action) -> float:
        time = costs.stage.get((action.pipeline, action.stage), StageTime(f=0, i=0, w=0))
        known = {
            Op.FORWARD: time.f,
            Op.BACKWARD: time.i + time.w,
            Op.INPUT_GRADIENT: time.i,
            Op.WEIGHT_GRADIENT: time.w,
        }
        return known.get(action.op, 0.0)

    changed = True
    while changed:
        changed = False
        for rank, actions in lists.items():
            last_left: dict[tuple[Op, int], float] = {}
            for index, action in enumerate(actions):
                earliest = start[rank, action]
                if index:
                    earliest = max(earliest, start[rank, actions[index - 1]] + duration(actions[index - 1]))
                if action.op in before:
                    op, offset = before[action.op]
                    sent = action._replace(op=op, stage=action.stage + offset)
                    boundary = min(action.stage, sent.stage)
                    if sent in leaves:
                        earliest = max(earliest, leaves[sent] + costs.crossings["a", boundary][0].latency_s)
                if action.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT):
                    boundary = action.stage if action.op is Op.SEND_ACTIVATION else action.stage - 1
                    left = (
                        max(earliest, last_left.get((action.op, boundary), 0.0))
                        + costs.crossings["a", boundary][0].occupancy_s
                    )
                    last_left[action.op, boundary] = left
                    changed |= leaves.get(action) != left
                    leaves[action] = left
                changed |= earliest != start[rank, action]
                start[rank, action] = earliest
    return max(begun + duration(action) for (_, action), begun in start.items() if action.op not in (Op.NORM, Op.STEP))


@pytest.mark.parametrize("schedule", [ScheduleName.GPIPE, ScheduleName.ONE_F_ONE_B])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 7), (4, 4), (4, 16), (8, 3)])
def test_equal_stages_take_the_closed_form(schedule: ScheduleName, stages: int, microbatches: int) -> None:
    done = replay(lists_of(schedule, stages, microbatches), costs_of([(1.0, 2.0)] * stages))
    assert length(done) == pytest.approx((microbatches + stages - 1) * 3.0)


def test_replay_keeps_the_order_of_every_list() -> None:
    lists = lists_of(ScheduleName.ONE_F_ONE_B, 4, 6)
    done = replay(lists, costs_of([(1.0, 2.0), (3.0, 1.0), (1.0, 1.0), (2.0, 2.0)]))
    for rank, spans in done.items():
        assert [timed.action for timed in spans] == lists[rank]
        assert all(one.stop_s <= other.start_s for one, other in itertools.pairwise(spans))


def test_replay_equals_the_longest_path_on_random_pipelines() -> None:
    draw = random.Random(7)  # noqa: S311
    for _ in range(60):
        stages, microbatches = draw.randint(1, 5), draw.randint(1, 7)
        lists = lists_of(draw.choice(SCHEDULES), stages, microbatches)
        costs = costs_of(
            [(draw.uniform(0.1, 3), draw.uniform(0.1, 5)) for _ in range(stages)],
            [(draw.uniform(0, 2), draw.uniform(0, 1)) for _ in range(stages - 1)],
        )
        assert length(replay(lists, costs)) == pytest.approx(longest_path(lists, costs))


def test_replay_equals_the_longest_path_where_workers_hold_several_stages() -> None:
    draw = random.Random(8)  # noqa: S311
    for _ in range(60):
        stages = draw.randint(1, 6)
        holder = [draw.randrange(3) for _ in range(stages)]
        places = [held for rank in range(3) if (held := tuple(s for s in range(stages) if holder[s] == rank))]
        schedule = draw.choice([ScheduleName.GPIPE, ScheduleName.INTERLEAVED, ScheduleName.LIST])
        lists = lists_of(schedule, stages, draw.randint(1, 7), places)
        times = [(draw.uniform(0.1, 3), draw.uniform(0.1, 5)) for _ in range(stages)]
        boundaries = [(draw.uniform(0, 2), draw.uniform(0, 1)) for _ in range(stages - 1)]
        costs = costs_of(times, boundaries, places)
        assert length(replay(lists, costs)) == pytest.approx(longest_path(lists, costs))


def test_a_stage_waits_for_the_parts_of_all_senders() -> None:
    """Ranks 0 and 1 are two groups of stage 0, rank 2 is stage 1: it begins when the slower part has arrived."""
    lists = {
        rank: [*with_messages([(Op.FORWARD, stage, 0), (Op.BACKWARD, stage, 0)], "a", 1), Action(Op.NORM)]
        for rank, stage in ((0, 0), (1, 0), (2, 1))
    }
    costs = dataclasses.replace(
        costs_of([(1.0, 2.0)] * 2, places=[(0,), (1,)]),
        crossings={("a", 0): [Crossing(0, 2, 0.5, 0.1), Crossing(1, 2, 2.0, 0.1)]},
    )
    done = replay(lists, costs)
    assert done[2][1].start_s == pytest.approx(1.0 + 2.0 + 0.1)
    assert done[0][-2].start_s == pytest.approx(3.1 + 3.0 + 0.5 + 0.1)
    assert done[1][-2].start_s == pytest.approx(3.1 + 3.0 + 2.0 + 0.1)
    assert [done[rank][-1].stop_s for rank in range(3)] == pytest.approx([3.1 + 3.0 + 2.1 + 2.0] * 3)


def test_a_faster_link_never_makes_a_step_longer() -> None:
    draw = random.Random(11)  # noqa: S311
    for _ in range(40):
        stages = draw.randint(2, 5)
        lists = lists_of(draw.choice(SCHEDULES), stages, draw.randint(1, 6))
        times = [(draw.uniform(0.1, 3), draw.uniform(0.1, 5)) for _ in range(stages)]
        slow = [(draw.uniform(0, 2), draw.uniform(0, 1)) for _ in range(stages - 1)]
        fast = [(occupancy * draw.random(), latency * draw.random()) for occupancy, latency in slow]
        longer, shorter = length(replay(lists, costs_of(times, slow))), length(replay(lists, costs_of(times, fast)))
        assert shorter <= longer + 1e-12
        assert shorter >= max(sum(pair) for pair in times)


def test_lists_that_wait_for_each_other_are_named() -> None:
    lists = {0: [Action(Op.RECV_GRADIENT, "a", 0, 0)], 1: [Action(Op.RECV_ACTIVATION, "a", 1, 0)]}
    with pytest.raises(ValueError, match=r"rank 0 at a\.0\.RG0, rank 1 at a\.1\.RA0"):
        replay(lists, costs_of([(1.0, 1.0)] * 2))
