"""One action of a worker, and its text form.

`a.1.F3` is the forward of microbatch 3 on stage 1 of pipeline `a`; `REDUCE2` sums gradient bucket 2; `NORM` takes the
norm of all gradients over all workers; `STEP` updates. A list of actions per rank prints as one line per rank and
parses back to the same list.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from polyreme.errors import Fault, InputError
from polyreme.specs.events import Event


class Op(StrEnum):
    """What an action does. The value is its text form. B is I and W in one; EVAL is recorded, but stands in no list."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    SEND_ACTIVATION = "SA"
    RECV_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECV_GRADIENT = "RG"
    REDUCE = "REDUCE"
    NORM = "NORM"
    STEP = "STEP"
    EVALUATE = "EVAL"


COMPUTE_OPS = frozenset({Op.FORWARD, Op.BACKWARD, Op.INPUT_GRADIENT, Op.WEIGHT_GRADIENT})
SEND_OPS = frozenset({Op.SEND_ACTIVATION, Op.SEND_GRADIENT})
RECV_OPS = frozenset({Op.RECV_ACTIVATION, Op.RECV_GRADIENT})
WHOLE_WORKER_OPS = frozenset({Op.REDUCE, Op.NORM, Op.STEP, Op.EVALUATE})
RECEIVED_AS = {Op.SEND_ACTIVATION: (Op.RECV_ACTIVATION, 1), Op.SEND_GRADIENT: (Op.RECV_GRADIENT, -1)}
"""Send op -> the op that receives it, and how many stages further that is."""

RECEIVES_POSTED = 2
"""Receives that a worker keeps posted per boundary and direction: so far can a sender be ahead without waiting."""


class Action(NamedTuple):
    """(op, pipeline, stage, microbatch). For REDUCE, `stage` is the bucket; REDUCE, NORM and STEP have no pipeline."""

    op: Op
    pipeline: str = ""
    stage: int = 0
    microbatch: int = 0

    def __str__(self) -> str:
        if self.op is Op.REDUCE:
            return f"REDUCE{self.stage}"
        if self.op in WHOLE_WORKER_OPS:
            return str(self.op)
        return f"{self.pipeline}.{self.stage}.{self.op}{self.microbatch}"


def recorded_action(event: Event, pipelines: Sequence[str]) -> Action:
    """The action that an event records; `pipelines` are the running ones, one without a name goes by its number."""
    op = Op(event.op)
    if op in WHOLE_WORKER_OPS:
        return Action(op, stage=event.stage if op is Op.REDUCE else 0)
    name = pipelines[event.pipeline] if event.pipeline < len(pipelines) else f"p{event.pipeline}"
    return Action(op, name, event.stage, event.microbatch)


ActionLists = Mapping[int, Sequence[Action]]
"""Rank -> what it does, in order."""

HEADER = "# polyreme.actions/1"
_STAGED = re.compile(r"([A-Za-z0-9_@-]+)\.(\d{1,7})\.(F|B|I|W|SA|RA|SG|RG)(\d{1,9})", re.ASCII)
_REDUCE = re.compile(r"REDUCE(\d{1,7})", re.ASCII)


def parse_action(text: str) -> Action:
    """The action that `text` names. ValueError if it names none."""
    if text in (Op.STEP, Op.NORM):
        return Action(Op(text))
    if match := _REDUCE.fullmatch(text):
        return Action(Op.REDUCE, stage=int(match[1]))
    if match := _STAGED.fullmatch(text):
        return Action(Op(match[3]), match[1], int(match[2]), int(match[4]))
    raise ValueError(f"{text!r} is no action; one looks like a.1.F3, REDUCE2, NORM or STEP")


def print_actions(lists: ActionLists) -> str:
    """Text of all lists: a header, then `rank: action action ...` per rank."""
    lines = [HEADER, *(f"{rank}: {' '.join(map(str, lists[rank]))}" for rank in sorted(lists))]
    return "\n".join(lines) + "\n"


def parse_actions(text: str, source: str = "actions") -> dict[int, list[Action]]:
    """The lists that `print_actions` wrote. InputError names every line that is wrong."""
    lists: dict[int, list[Action]] = {}
    faults = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        rank, colon, rest = line.partition(":")
        if not colon or not re.fullmatch(r"\s*\d{1,9}\s*", rank) or int(rank) in lists:
            problem = "a line is `rank: action action ...`, each rank once"
            faults.append(Fault(source=f"{source}:{number}", problem=problem))
            continue
        lists[int(rank)] = []
        for word in rest.split():
            try:
                lists[int(rank)].append(parse_action(word))
            except ValueError as error:
                faults.append(Fault(source=f"{source}:{number}", problem=str(error)))
    if faults:
        raise InputError(faults)
    return lists
