"""Who waits for whom in a run, and which ranks keep it from moving: pure analysis of where every rank is.

A rank waits in a receive for those who have not sent yet, in a collective for those who have not reached it, and after
its last action for those who have not received its messages. In any other place it waits for nobody. A run has stalled
if a rank that waits for nobody has not moved for too long, or ranks that wait for each other in a cycle have not.
A rank that merely waits for a slow one that moves is no stall, however long it takes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyreme.layout.boundaries import transfers
from polyreme.layout.instances import instances
from polyreme.schedules.action import RECV_OPS, SEND_OPS, Action, ActionLists, Op
from polyreme.specs.plan import Plan

COLLECTIVE_OPS = frozenset({Op.REDUCE, Op.NORM})
"""Actions in which every rank whose list holds the same action waits for the others to reach it."""

_MATCH = {
    Op.RECV_ACTIVATION: (Op.SEND_ACTIVATION, -1),
    Op.RECV_GRADIENT: (Op.SEND_GRADIENT, +1),
    Op.SEND_ACTIVATION: (Op.RECV_ACTIVATION, +1),
    Op.SEND_GRADIENT: (Op.RECV_GRADIENT, -1),
}
"""Op of a message -> op at its other end, and the stage of that end relative to this one."""

Waits = Mapping[int, tuple[int, ...]]
"""Rank -> the ranks that it waits for."""


@dataclass(frozen=True, slots=True)
class RankState:
    """Where a rank is: how many actions of `step` it has begun and ended, and since when (monotonic nanoseconds).

    `is_stopped`: by a signal. A rank that is not `is_watched` may take as long as it likes: it starts up, or saves.
    """

    step: int
    begun: int
    ended: int
    since_ns: int
    is_stopped: bool = False
    is_watched: bool = True


@dataclass(frozen=True, slots=True)
class Stall:
    """The ranks at fault, likeliest first: they wait for nobody, or form a cycle in which each waits for the next."""

    culprits: tuple[int, ...]
    is_cycle: bool


class Dependencies:
    """What every action of a plan waits for. `lists` are the action lists that the workers walk."""

    def __init__(self, plan: Plan, lists: ActionLists) -> None:
        self.lists = lists
        self._index = {rank: {action: i for i, action in enumerate(actions)} for rank, actions in lists.items()}
        self._partners = _message_partners(plan)
        self._members: dict[Action, list[int]] = {}
        for rank, actions in sorted(lists.items()):
            for action in actions:
                if action.op in COLLECTIVE_OPS:
                    self._members.setdefault(action, []).append(rank)

    def waits(self, states: Mapping[int, RankState]) -> Waits:
        """The ranks that each rank waits for right now."""
        return {rank: self._waits_of(rank, state, states) for rank, state in states.items()}

    def _waits_of(self, rank: int, state: RankState, states: Mapping[int, RankState]) -> tuple[int, ...]:
        if state.is_stopped or not state.is_watched:
            return ()
        actions = self.lists[rank]
        if state.begun == state.ended:
            return self._unreceived(rank, state, states) if state.ended == len(actions) else ()
        action = actions[state.ended]
        if action.op in RECV_OPS:
            return self._unsent(rank, action, state, states)
        if action.op in COLLECTIVE_OPS:
            return self._missing(rank, action, state, states)
        return ()

    def _unsent(self, rank: int, action: Action, state: RankState, states: Mapping[int, RankState]) -> tuple[int, ...]:
        """Senders that have not sent. Once all have, only a stopped one can hold the rest of its message back."""
        ends = self._other_ends(rank, action)
        late = tuple(peer for peer, index in ends if (states[peer].step, states[peer].ended) <= (state.step, index))
        return late or tuple(peer for peer, _ in ends if states[peer].is_stopped)

    def _missing(self, rank: int, action: Action, state: RankState, states: Mapping[int, RankState]) -> tuple[int, ...]:
        """Members that have not reached a collective. Once all have, each waits for all others."""
        others = [peer for peer in self._members[action] if peer != rank]
        late = tuple(
            peer
            for peer in others
            if (states[peer].step, states[peer].begun) <= (state.step, self._index[peer][action])
        )
        return late or tuple(peer for peer in others if states[peer].is_stopped) or tuple(others)

    def _unreceived(self, rank: int, state: RankState, states: Mapping[int, RankState]) -> tuple[int, ...]:
        """Receivers of this step's messages that have not taken all of them: a step ends when they have left."""
        found = {
            peer
            for action in self.lists[rank]
            if action.op in SEND_OPS
            for peer, index in self._other_ends(rank, action)
            if (states[peer].step, states[peer].ended) <= (state.step, index)
        }
        return tuple(sorted(found))

    def _other_ends(self, rank: int, action: Action) -> list[tuple[int, int]]:
        """(rank, position in its list) of the actions at the other end of a message."""
        op, towards = _MATCH[action.op]
        other = Action(op, action.pipeline, action.stage + towards, action.microbatch)
        partners = self._partners.get((action.pipeline, action.stage, other.stage, rank), ())
        return [(peer, self._index[peer][other]) for peer in partners if other in self._index[peer]]


def find_stall(
    states: Mapping[int, RankState], waits: Waits, quiet_s: Mapping[int, float], deadline_s: float
) -> Stall | None:
    """What keeps the run from moving, if it has done so for longer than `deadline_s` seconds.

    `quiet_s` is for how long a rank's state and what it waits for have not changed.
    """
    if all(quiet_s[rank] <= deadline_s for rank in states):
        return None
    free = [rank for rank in states if not waits[rank]]
    due = [rank for rank in free if (states[rank].is_watched or states[rank].is_stopped) and quiet_s[rank] > deadline_s]
    if due:
        return Stall(tuple(sorted(due, key=lambda r: (not states[r].is_stopped, states[r].since_ns, r))), False)
    cycle = _cycle(waits, free)
    if cycle and all(quiet_s[rank] > deadline_s for rank in cycle):
        return Stall(cycle, True)
    return None


def waiters(waits: Waits, rank: int) -> dict[int, int]:
    """Every rank that waits for `rank`, directly or through others, nearest first -> the rank that it waits for."""
    by_target: dict[int, list[int]] = {}
    for waiter, targets in waits.items():
        for target in targets:
            by_target.setdefault(target, []).append(waiter)
    found: dict[int, int] = {}
    queue = deque([rank])
    while queue:
        target = queue.popleft()
        for waiter in by_target.get(target, ()):
            if waiter != rank and waiter not in found:
                found[waiter] = target
                queue.append(waiter)
    return found


def _cycle(waits: Waits, free: Sequence[int]) -> tuple[int, ...]:
    """Ranks of which each waits for the next and the last for the first; none if all wait for `free` ones."""
    reached = set(free).union(*(waiters(waits, rank) for rank in free))
    trapped = sorted(set(waits) - reached)
    if not trapped:
        return ()
    path = [trapped[0]]
    while (following := waits[path[-1]][0]) not in path:
        path.append(following)
    return tuple(path[path.index(following) :])


def _message_partners(plan: Plan) -> dict[tuple[str, int, int, int], list[int]]:
    """(pipeline, stage, neighbouring stage, rank on the stage) -> the ranks there that it exchanges messages with."""
    found: dict[tuple[str, int, int, int], list[int]] = {}
    for instance in instances(plan):
        for stage in range(instance.num_stages - 1):
            for transfer in transfers(instance, stage, plan.batch.tokens_per_sequence):
                found.setdefault((instance.name, stage, stage + 1, transfer.source), []).append(transfer.target)
                found.setdefault((instance.name, stage + 1, stage, transfer.target), []).append(transfer.source)
    return found
