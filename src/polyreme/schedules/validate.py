"""Checks lists of actions from anywhere: complete, in order, every message paired in order, and free of deadlock."""

from collections import Counter, deque
from collections.abc import Sequence

from polyreme.schedules.action import COMPUTE_OPS, RECV_OPS, SEND_OPS, Action, ActionLists, Op

_SENT_BY = {Op.RECV_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECV_GRADIENT: (Op.SEND_GRADIENT, 1)}


Mailboxes = dict[tuple[Op, str, int], deque[int]]
"""Microbatches under way, by (send op, pipeline, stage of the sender)."""


def validate(lists: ActionLists) -> list[str]:
    """Everything wrong with the lists, as sentences; empty if they can run. Sends are taken as buffered."""
    problems = [problem for rank in sorted(lists) for problem in _order_problems(rank, lists[rank])]
    return [*problems, *_reduction_problems(lists)] or _deadlock_problems(lists)


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
    forwards = {action for action in present if action.op is Op.FORWARD}
    backwards = {action._replace(op=Op.FORWARD) for action in present if action.op is Op.BACKWARD}
    problems += [f"rank {rank}: {action} has no backward" for action in sorted(forwards - backwards)]
    if Action(Op.STEP) not in seen:
        problems.append(f"rank {rank}: STEP is missing")
    return problems


def _reduction_problems(lists: ActionLists) -> list[str]:
    """A reduction that one rank enters alone. Which further ranks own a bucket, lists do not say."""
    entered = Counter(action for actions in lists.values() for action in set(actions) if action.op is Op.REDUCE)
    return [f"{action} is entered by one rank alone" for action, count in sorted(entered.items()) if count == 1]


def _needs(action: Action, present: set[Action]) -> set[Action]:
    """Actions of the same rank that must come first: a compute always, a receive where the rank has one."""
    wanted = {
        Op.FORWARD: (Op.RECV_ACTIVATION,),
        Op.BACKWARD: (Op.FORWARD, Op.RECV_GRADIENT),
        Op.SEND_ACTIVATION: (Op.FORWARD,),
        Op.SEND_GRADIENT: (Op.BACKWARD,),
    }.get(action.op, ())
    needed = {action._replace(op=op) for op in wanted}
    return {need for need in needed if need.op in COMPUTE_OPS or need in present}


def _deadlock_problems(lists: ActionLists) -> list[str]:
    """Run the lists with unbounded mailboxes; name every rank that waits for ever and what for."""
    position = dict.fromkeys(lists, 0)
    mailboxes: Mailboxes = {}
    moved = True
    while moved:
        moved = False
        for rank, actions in lists.items():
            while position[rank] < len(actions) and _runs(actions[position[rank]], mailboxes):
                position[rank] += 1
                moved = True
    stuck = [rank for rank in sorted(lists) if position[rank] < len(lists[rank])]
    if stuck:
        return [f"rank {rank} waits for ever at {lists[rank][position[rank]]}" for rank in stuck]
    return [
        f"{pipeline}.{stage}.{op}{microbatch} is never received"
        for (op, pipeline, stage), box in mailboxes.items()
        for microbatch in box
    ]


def _runs(action: Action, mailboxes: Mailboxes) -> bool:
    """Whether the action can run now; moves its message. Messages of one boundary arrive in the order sent."""
    if action.op in SEND_OPS:
        mailboxes.setdefault((action.op, action.pipeline, action.stage), deque()).append(action.microbatch)
    elif action.op in RECV_OPS:
        sent, offset = _SENT_BY[action.op]
        box = mailboxes.get((sent, action.pipeline, action.stage + offset))
        if not box or box[0] != action.microbatch:
            return False
        box.popleft()
    return True
