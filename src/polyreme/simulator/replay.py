"""Replays lowered action lists: computes take their time, messages travel while workers go on, reductions wait for all.

Times follow from dependencies alone, so each worker's list is advanced as far as it can go, round after round.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyreme.schedules.action import RECV_OPS, Action, ActionLists, Op
from polyreme.specs.plan import StageTime

Place = tuple[str, int]
"""(pipeline, stage)."""


class Timed(NamedTuple):
    """One action with its time in the step, seconds."""

    action: Action
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Durations of everything in a step. `boundary_s` is (occupancy, latency) of the link after a stage, each way."""

    stage: Mapping[Place, StageTime]
    boundary_s: Mapping[Place, tuple[float, float]]
    reduce_s: Sequence[float]
    reduce_owners: Sequence[Sequence[int]]
    update_s: Mapping[int, float]


_RECEIVED_AS = {Op.SEND_ACTIVATION: (Op.RECV_ACTIVATION, 1), Op.SEND_GRADIENT: (Op.RECV_GRADIENT, -1)}


def replay(lists: ActionLists, costs: StepCosts) -> dict[int, list[Timed]]:
    """Start and stop of every action of every rank. ValueError if the lists deadlock."""
    step = _Step(costs)
    position = dict.fromkeys(lists, 0)
    done: dict[int, list[Timed]] = {rank: [] for rank in lists}
    moved = True
    while moved:
        moved = False
        for rank, actions in lists.items():
            start = position[rank]
            if start < len(actions):
                position[rank] = step.advance(rank, actions, start, done[rank])
                moved |= position[rank] > start
    stuck = [f"rank {rank} at {lists[rank][index]}" for rank, index in position.items() if index < len(lists[rank])]
    if stuck:
        raise ValueError(f"the action lists deadlock: {', '.join(stuck)}")
    return done


class _Step:
    """Messages under way and reductions that wait. Mailboxes are named by the receiving op and stage."""

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self.forward_s = {place: time.f for place, time in costs.stage.items()}
        self.backward_s = {place: time.backward_s for place, time in costs.stage.items()}
        self.mailboxes: dict[tuple[Op, str, int], deque[float]] = defaultdict(deque)
        self.link_free: dict[tuple[Op, str, int], float] = defaultdict(float)
        self.reached: dict[int, dict[int, float]] = defaultdict(dict)

    def advance(self, rank: int, actions: Sequence[Action], index: int, done: list[Timed]) -> int:
        """Run a rank's list from `index` as far as it can go now; returns where it stopped.

        One loop with everything at hand: a search replays tens of thousands of actions per candidate.
        """
        forward, backward = Op.FORWARD, Op.BACKWARD
        forward_s, backward_s, mailboxes = self.forward_s, self.backward_s, self.mailboxes
        now = done[-1].stop_s if done else 0.0
        while index < len(actions):
            action = actions[index]
            op = action[0]
            if op is forward:
                stop = now + forward_s[action[1], action[2]]
            elif op is backward:
                stop = now + backward_s[action[1], action[2]]
            elif op in _RECEIVED_AS:
                self._send(action, now)
                stop = now
            elif op in RECV_OPS:
                box = mailboxes[op, action[1], action[2]]
                if not box:
                    return index
                stop = max(now, box.popleft())
            elif op is Op.REDUCE:
                reached = self.reached[action.stage]
                reached[rank] = now
                if len(reached) < len(self.costs.reduce_owners[action.stage]):
                    return index
                stop = max(reached.values()) + self.costs.reduce_s[action.stage]
            else:
                stop = now + self.costs.update_s[rank]
            done.append(Timed(action, now, stop))
            now = stop
            index += 1
        return index

    def _send(self, action: Action, now: float) -> None:
        """Put a message on its link: behind the one before it, then the latency."""
        received, offset = _RECEIVED_AS[action.op]
        occupancy, latency = self.costs.boundary_s[action.pipeline, min(action.stage, action.stage + offset)]
        key = (received, action.pipeline, action.stage + offset)
        free = max(now, self.link_free[key]) + occupancy
        self.link_free[key] = free
        self.mailboxes[key].append(free + latency)
