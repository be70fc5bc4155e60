"""Checks lists of actions from anywhere: complete, in order, every message paired in order, and free of deadlock.

Messages are checked under two assumptions. Buffered: a send never waits. Rendezvous: a send waits until the receiver
has posted the receive, of which every worker keeps RECEIVES_POSTED open per boundary and direction.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from polyreme.schedules.action import COMPUTE_OPS, RECEIVED_AS, RECEIVES_POSTED, RECV_OPS, Action, ActionLists, Op

Boundary = tuple[Op, str, int]
"""(receiving op, pipeline, stage of the receiver)."""

_SPLIT = (Op.INPUT_GRADIENT, Op.WEIGHT_GRADIENT)


def validate(
    lists: ActionLists,
    owners: Sequence[Sequence[int]] | None = None,
    most_held: Mapping[int, int] | None = None,
) -> list[str]:
    """Everything wrong with the lists, as sentences; empty if they can run.

    `owners` are the ranks of every bucket, `most_held` the microbatches that a rank may hold at once, where known.
    """
    problems = [problem for rank in sorted(lists) for problem in _order_problems(rank, lists[rank])]
    problems += [*_reduction_problems(lists, owners), *_held_problems(lists, most_held or {}), *_fifo_problems(lists)]
    return problems or _deadlock_problems(lists, None) or _deadlock_problems(lists, RECEIVES_POSTED)


def _order_problems(rank: int, actions: Sequence[Action]) -> list[str]:
    problems = []
    present, seen = set(actions), set[Action]()
    for position, action in enumerate(actions):
        if action in seen:
            problems.append(f"rank {rank}: {action} appears twice")
        seen.add(action)
        problems += [f"rank {rank}: {action} comes before {need}" for need in _needs(action, present) - seen]
        if action.op is Op.STEP and position != len(actions) - 1:
            problems.append(f"rank {rank}: actions follow STEP")
    for action in sorted(action for action in present if action.op is Op.FORWARD):
        whole = action._replace(op=Op.BACKWARD) in present
        halves = [action._replace(op=op) in present for op in _SPLIT]
        if not whole and not all(halves):
            problems.append(f"rank {rank}: {action} has no backward")
        if whole and any(halves):
            problems.append(f"rank {rank}: {action} has a whole backward and a part of one")
    problems += [f"rank {rank}: {op} is missing" for op in (Op.NORM, Op.STEP) if Action(op) not in seen]
    return problems


def _needs(action: Action, present: set[Action]) -> set[Action]:
    """Actions of the same rank that must come first: a compute always, a receive where the rank has one."""
    wanted: dict[Op, tuple[Op, ...]] = {
        Op.FORWARD: (Op.RECV_ACTIVATION,),
        Op.BACKWARD: (Op.FORWARD, Op.RECV_GRADIENT),
        Op.INPUT_GRADIENT: (Op.FORWARD, Op.RECV_GRADIENT),
        Op.WEIGHT_GRADIENT: (Op.INPUT_GRADIENT,),
        Op.SEND_ACTIVATION: (Op.FORWARD,),
    }
    needed = {action._replace(op=op) for op in wanted.get(action.op, ())}
    if action.op is Op.SEND_GRADIENT:
        split = action._replace(op=Op.INPUT_GRADIENT) in present
        needed = {action._replace(op=Op.INPUT_GRADIENT if split else Op.BACKWARD)}
    if action.op is Op.STEP:
        needed = {one for one in present if one.op in (Op.REDUCE, Op.NORM)}
    if action.op is Op.NORM:
        needed = {one for one in present if one.op in (Op.REDUCE, Op.BACKWARD, Op.WEIGHT_GRADIENT)}
    return {need for need in needed if need.op in COMPUTE_OPS or need in present}


def _reduction_problems(lists: ActionLists, owners: Sequence[Sequence[int]] | None) -> list[str]:
    """A reduction that an owner leaves out, or that one rank enters alone."""
    if owners is not None:
        return [
            f"rank {rank}: REDUCE{bucket} is missing"
            for bucket, ranks in enumerate(owners)
            for rank in ranks
            if Action(Op.REDUCE, stage=bucket) not in lists[rank]
        ]
    entered = Counter(action for actions in lists.values() for action in set(actions) if action.op is Op.REDUCE)
    return [f"{action} is entered by one rank alone" for action, count in sorted(entered.items()) if count == 1]


def _held_problems(lists: ActionLists, most_held: Mapping[int, int]) -> list[str]:
    problems = []
    for rank, most in most_held.items():
        held = 0
        for action in lists[rank]:
            held += (action.op is Op.FORWARD) - (action.op in (Op.BACKWARD, Op.WEIGHT_GRADIENT))
            if held > most:
                problems.append(f"rank {rank}: {action} would hold {held} microbatches, it may hold {most}")
                break
    return problems


def _fifo_problems(lists: ActionLists) -> list[str]:
    """Ends of a boundary that name its messages in different orders."""
    sent: dict[Boundary, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    received: dict[Boundary, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, actions in lists.items():
        for action in actions:
            if action.op in RECEIVED_AS:
                sent[_boundary(action)][rank].append(action.microbatch)
            elif action.op in RECV_OPS:
                received[_boundary(action)][rank].append(action.microbatch)
    problems = []
    for boundary in sorted(sent.keys() | received.keys()):
        op, pipeline, stage = boundary
        orders = {tuple(order) for ends in (sent, received) for order in ends[boundary].values()}
        if not sent[boundary] or not received[boundary]:
            side = "received" if sent[boundary] else "sent"
            problems.append(f"messages {pipeline}.{stage}.{op} are never {side}")
        elif len(orders) > 1:
            ranks = sorted(sent[boundary].keys() | received[boundary].keys())
            problems.append(f"ranks {ranks} name the messages {pipeline}.{stage}.{op} in different orders")
    return problems


def _boundary(action: Action) -> Boundary:
    """The boundary that a message crosses, as its receiver calls it."""
    op, offset = RECEIVED_AS.get(action.op, (action.op, 0))
    return op, action.pipeline, action.stage + offset


def _deadlock_problems(lists: ActionLists, posted: int | None) -> list[str]:
    """Run the lists; name every rank that waits for ever and what for.

    A send waits while `posted` earlier messages are untaken by a receiver, not at all if None. Ranks that hold the
    stages on both sides never wait: what they exchange is buffered.
    """
    run = _Run(lists, posted)
    moved = True
    while moved:
        moved = False
        for rank, actions in lists.items():
            while run.position[rank] < len(actions) and run.runs(rank, actions[run.position[rank]]):
                run.position[rank] += 1
                moved = True
    stuck = [rank for rank in sorted(lists) if run.position[rank] < len(lists[rank])]
    under = "" if posted is None else " where sends wait for their receive"
    return [f"rank {rank} waits for ever at {lists[rank][run.position[rank]]}{under}" for rank in stuck]


class _Run:
    """Positions in all lists, and how many messages each end of a boundary has sent or taken."""

    def __init__(self, lists: ActionLists, posted: int | None) -> None:
        self.posted = posted
        self.position = dict.fromkeys(lists, 0)
        self.sent: dict[Boundary, dict[int, int]] = defaultdict(dict)
        self.taken: dict[Boundary, dict[int, int]] = defaultdict(dict)
        self.meeting: dict[Action, set[int]] = defaultdict(set)
        for rank, actions in lists.items():
            for action in set(actions):
                if action.op in RECEIVED_AS:
                    self.sent[_boundary(action)][rank] = 0
                elif action.op in RECV_OPS:
                    self.taken[_boundary(action)][rank] = 0
                elif action.op in (Op.REDUCE, Op.NORM):
                    self.meeting[action].add(rank)
        self.entered: dict[Action, set[int]] = defaultdict(set)

    def runs(self, rank: int, action: Action) -> bool:
        """Whether the action can run now; counts its message."""
        boundary = _boundary(action)
        if action.op in RECEIVED_AS:
            ends, others = self.sent[boundary], self.taken[boundary]
            inside = rank in others or not others
            if self.posted is not None and not inside and ends[rank] >= min(others.values()) + self.posted:
                return False
            ends[rank] += 1
        elif action.op in RECV_OPS:
            if min(self.sent[boundary].values()) <= self.taken[boundary][rank]:
                return False
            self.taken[boundary][rank] += 1
        elif action.op in (Op.REDUCE, Op.NORM):
            self.entered[action].add(rank)
            return self.entered[action] == self.meeting[action]
        return True
