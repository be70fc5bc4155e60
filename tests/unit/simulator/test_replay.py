"""The replay against closed forms and a longest-path oracle."""

import itertools
import random

import pytest

from polyreme.schedules.action import Action, Op
from polyreme.schedules.generate import stage_order
from polyreme.simulator.replay import StepCosts, Timed, replay
from polyreme.specs.fields import ScheduleName
from polyreme.specs.plan import StageTime

Lists = dict[int, list[Action]]


def lists_of(schedule: ScheduleName, num_stages: int, num_microbatches: int) -> Lists:
    """What lowering makes of one pipeline with a stage per rank."""
    lists: Lists = {}
    for stage in range(num_stages):
        actions = []
        for op, microbatch in stage_order(schedule, num_stages, stage, num_microbatches):
            receive, send = (
                (Op.RECV_ACTIVATION, Op.SEND_ACTIVATION) if op is Op.FORWARD else (Op.RECV_GRADIENT, Op.SEND_GRADIENT)
            )
            source = 0 if op is Op.FORWARD else num_stages - 1
            target = num_stages - 1 if op is Op.FORWARD else 0
            if stage != source:
                actions.append(Action(receive, "a", stage, microbatch))
            actions.append(Action(op, "a", stage, microbatch))
            if stage != target:
                actions.append(Action(send, "a", stage, microbatch))
        lists[stage] = [*actions, Action(Op.STEP)]
    return lists


def costs_of(times: list[tuple[float, float]], boundaries: list[tuple[float, float]] | None = None) -> StepCosts:
    boundaries = boundaries or [(0.0, 0.0)] * (len(times) - 1)
    return StepCosts(
        stage={("a", index): StageTime(f=f, i=b / 2, w=b / 2) for index, (f, b) in enumerate(times)},
        boundary_s={("a", index): boundary for index, boundary in enumerate(boundaries)},
        reduce_s=[],
        reduce_owners=[],
        update_s=dict.fromkeys(range(len(times)), 0.0),
    )


def length(done: dict[int, list[Timed]]) -> float:
    return max(spans[-1].stop_s for spans in done.values())


def longest_path(lists: Lists, costs: StepCosts) -> float:
    """End of the last action by relaxing all dependencies until nothing changes; messages leave a link in order."""
    before = {Op.RECV_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECV_GRADIENT: (Op.SEND_GRADIENT, 1)}
    start = {(rank, action): 0.0 for rank, actions in lists.items() for action in actions}
    leaves: dict[Action, float] = {}

    def duration(action: Action) -> float:
        if action.op is Op.FORWARD:
            return costs.stage[action.pipeline, action.stage].f
        return costs.stage[action.pipeline, action.stage].backward_s if action.op is Op.BACKWARD else 0.0

    changed = True
    while changed:
        changed = False
        for rank, actions in lists.items():
            last_left: dict[Op, float] = {}
            for index, action in enumerate(actions):
                earliest = start[rank, action]
                if index:
                    earliest = max(earliest, start[rank, actions[index - 1]] + duration(actions[index - 1]))
                if action.op in before:
                    op, offset = before[action.op]
                    sent = action._replace(op=op, stage=action.stage + offset)
                    boundary = min(action.stage, sent.stage)
                    if sent in leaves:
                        earliest = max(earliest, leaves[sent] + costs.boundary_s["a", boundary][1])
                if action.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT):
                    boundary = action.stage if action.op is Op.SEND_ACTIVATION else action.stage - 1
                    left = max(earliest, last_left.get(action.op, 0.0)) + costs.boundary_s["a", boundary][0]
                    last_left[action.op] = left
                    changed |= leaves.get(action) != left
                    leaves[action] = left
                changed |= earliest != start[rank, action]
                start[rank, action] = earliest
    return max(begun + duration(action) for (_, action), begun in start.items() if action.op is not Op.STEP)


@pytest.mark.parametrize("schedule", list(ScheduleName))
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
        lists = lists_of(draw.choice(list(ScheduleName)), stages, microbatches)
        costs = costs_of(
            [(draw.uniform(0.1, 3), draw.uniform(0.1, 5)) for _ in range(stages)],
            [(draw.uniform(0, 2), draw.uniform(0, 1)) for _ in range(stages - 1)],
        )
        assert length(replay(lists, costs)) == pytest.approx(longest_path(lists, costs))


def test_a_faster_link_never_makes_a_step_longer() -> None:
    draw = random.Random(11)  # noqa: S311
    for _ in range(40):
        stages = draw.randint(2, 5)
        lists = lists_of(draw.choice(list(ScheduleName)), stages, draw.randint(1, 6))
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
