"""Replays lowered action lists: computes take their time, messages travel while workers go on, reductions wait for all.

Times follow from dependencies alone, so each worker's list is advanced as far as it can go, round after round.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyreme.schedules.action import Action, ActionLists, Op
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


_SENT_BY = {Op.RECV_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECV_GRADIENT: (Op.SEND_GRADIENT, 1)}


def replay(lists: ActionLists, costs: StepCosts) -> dict[int, list[Timed]]:
    """Start and stop of every action of every rank. ValueError if the lists deadlock."""
    state = _Replay(costs)
    position = dict.fromkeys(lists, 0)
    done: dict[int, list[Timed]] = {rank: [] for rank in lists}
    clock = dict.fromkeys(lists, 0.0)
    moved = True
    while moved:
        moved = False
        for rank, actions in lists.items():
            index, now = position[rank], clock[rank]
            while index < len(actions):
                stop = state.run(rank, actions[index], now)
                if stop is None:
                    break
                done[rank].append(Timed(actions[index], now, stop))
                now = stop
                index += 1
                moved = True
            position[rank], clock[rank] = index, now
    stuck = [f"rank {rank} at {lists[rank][index]}" for rank, index in position.items() if index < len(lists[rank])]
    if stuck:
        raise ValueError(f"the action lists deadlock: {', '.join(stuck)}")
    return done


class _Replay:
    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self.arrivals: dict[tuple[Op, str, int], deque[float]] = {}
        self.link_free: dict[tuple[Op, str, int], float] = {}
        self.reached: dict[int, dict[int, float]] = {}

    def run(self, rank: int, action: Action, now: float) -> float | None:
        """When the action ends if it starts at `now`; None if it has to wait for something not simulated yet."""
        op = action.op
        if op is Op.FORWARD:
            return now + self.costs.stage[action.pipeline, action.stage].f
        if op is Op.BACKWARD:
            return now + self.costs.stage[action.pipeline, action.stage].backward_s
        if op in _SENT_BY:
            sent, offset = _SENT_BY[op]
            box = self.arrivals.get((sent, action.pipeline, action.stage + offset))
            return max(now, box.popleft()) if box else None
        if op is Op.REDUCE:
            return self._reduce(rank, action.stage, now)
        if op is Op.STEP:
            return now + self.costs.update_s[rank]
        boundary = action.stage if op is Op.SEND_ACTIVATION else action.stage - 1
        occupancy, latency = self.costs.boundary_s[action.pipeline, boundary]
        key = (op, action.pipeline, action.stage)
        free = max(now, self.link_free.get(key, 0.0)) + occupancy
        self.link_free[key] = free
        self.arrivals.setdefault(key, deque()).append(free + latency)
        return now

    def _reduce(self, rank: int, bucket: int, now: float) -> float | None:
        reached = self.reached.setdefault(bucket, {})
        reached[rank] = now
        if len(reached) < len(self.costs.reduce_owners[bucket]):
            return None
        return max(reached.values()) + self.costs.reduce_s[bucket]
