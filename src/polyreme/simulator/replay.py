"""Replays lowered action lists: computes take their time, messages travel while workers go on, reductions wait for all.

Times follow from dependencies alone, so each worker's list is advanced as far as it can go, round after round.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyreme.schedules.action import RECEIVED_AS, RECV_OPS, Action, ActionLists, Op
from polyreme.specs.plan import StageTime

Place = tuple[str, int]
"""(pipeline, stage)."""


class Timed(NamedTuple):
    """One action with its time in the step, seconds."""

    action: Action
    start_s: float
    stop_s: float


class Crossing(NamedTuple):
    """A message from `source` at a stage to `target` at the next: seconds on the link, then its latency, each way."""

    source: int
    target: int
    occupancy_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Durations of everything in a step. `crossings` are the messages over the boundary after a stage."""

    stage: Mapping[Place, StageTime]
    crossings: Mapping[Place, Sequence[Crossing]]
    reduce_s: Sequence[float]
    reduce_owners: Sequence[Sequence[int]]
    norm_s: float
    update_s: Mapping[int, float]


def replay(lists: ActionLists, costs: StepCosts) -> dict[int, list[Timed]]:
    """Start and stop of every action of every rank. ValueError if the lists deadlock."""
    step = _Step(costs, len(lists))
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


_ALL = -1
"""Number under which the norm meets, which all workers enter like a bucket that all of them own."""


class _Step:
    """Messages under way and reductions that wait. Mailboxes are named by receiving op, pipeline, stage and rank."""

    def __init__(self, costs: StepCosts, num_ranks: int) -> None:
        self.costs = costs
        self.seconds = {
            Op.FORWARD: {place: time.f for place, time in costs.stage.items()},
            Op.BACKWARD: {place: time.backward_s for place, time in costs.stage.items()},
            Op.INPUT_GRADIENT: {place: time.i for place, time in costs.stage.items()},
            Op.WEIGHT_GRADIENT: {place: time.w for place, time in costs.stage.items()},
        }
        self.mailboxes: dict[tuple[Op, str, int, int], deque[float]] = defaultdict(deque)
        self.link_free: dict[tuple[Op, str, int, int, int], float] = defaultdict(float)
        self.meetings = [
            (len(owners), seconds) for owners, seconds in zip(costs.reduce_owners, costs.reduce_s, strict=True)
        ]
        self.meetings.append((num_ranks, costs.norm_s))
        self.reached: dict[int, dict[int, float]] = defaultdict(dict)
        self.routes: dict[tuple[Op, str, int, int], list[tuple[int, float, float]]] = defaultdict(list)
        self.num_senders: dict[tuple[Op, str, int, int], int] = defaultdict(int)
        for (pipeline, stage), crossings in costs.crossings.items():
            for source, target, occupancy_s, latency_s in crossings:
                self._route(Op.RECV_ACTIVATION, pipeline, stage + 1, source, target, occupancy_s, latency_s)
                self._route(Op.RECV_GRADIENT, pipeline, stage, target, source, occupancy_s, latency_s)
        self.parts: dict[tuple[Op, str, int, int], dict[int, deque[float]]] = {}

    def _route(
        self, op: Op, pipeline: str, stage: int, source: int, target: int, occupancy_s: float, latency_s: float
    ) -> None:
        self.routes[op, pipeline, stage, source].append((target, occupancy_s, latency_s))
        self.num_senders[op, pipeline, stage, target] += 1

    def advance(self, rank: int, actions: Sequence[Action], index: int, done: list[Timed]) -> int:
        """Run a rank's list from `index` as far as it can go now; returns where it stopped.

        One loop with everything at hand: a search replays tens of thousands of actions per candidate.
        """
        seconds, mailboxes = self.seconds, self.mailboxes
        now = done[-1].stop_s if done else 0.0
        while index < len(actions):
            action = actions[index]
            op = action[0]
            if op in seconds:
                stop = now + seconds[op][action[1], action[2]]
            elif op in RECEIVED_AS:
                self._send(rank, action, now)
                stop = now
            elif op in RECV_OPS:
                box = mailboxes[op, action[1], action[2], rank]
                if not box:
                    return index
                stop = max(now, box.popleft())
            elif op is Op.STEP:
                stop = now + self.costs.update_s[rank]
            else:
                number = _ALL if op is Op.NORM else action.stage
                owners, took_s = self.meetings[number]
                reached = self.reached[number]
                reached[rank] = now
                if len(reached) < owners:
                    return index
                stop = max(reached.values()) + took_s
            done.append(Timed(action, now, stop))
            now = stop
            index += 1
        return index

    def _send(self, rank: int, action: Action, now: float) -> None:
        """Put the parts of a message on their links: each behind the one before it, then the latency."""
        op, offset = RECEIVED_AS[action.op]
        _, pipeline, stage, _ = action
        for target, occupancy_s, latency_s in self.routes[op, pipeline, stage + offset, rank]:
            link = (op, pipeline, stage + offset, rank, target)
            free = max(now, self.link_free[link]) + occupancy_s
            self.link_free[link] = free
            self._arrive((op, pipeline, stage + offset, target), rank, free + latency_s)

    def _arrive(self, box: tuple[Op, str, int, int], source: int, at_s: float) -> None:
        """A part from one sender; the message is there when the parts of all senders are."""
        if self.num_senders[box] == 1:
            self.mailboxes[box].append(at_s)
            return
        parts = self.parts.setdefault(box, {})
        parts.setdefault(source, deque()).append(at_s)
        if len(parts) == self.num_senders[box] and all(parts.values()):
            self.mailboxes[box].append(max(part.popleft() for part in parts.values()))
