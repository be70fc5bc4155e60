"""One action of a worker, and its text form.

`a.1.F3` is the forward of microbatch 3 on stage 1 of pipeline `a`; `REDUCE2` sums gradient bucket 2; `STEP` updates.
A list of actions per rank prints as one line per rank and parses back to the same list.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from polyreme.errors import Fault, InputError


class Op(StrEnum):
    """What an action does. The value is its text form."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_ACTIVATION = "SA"
    RECV_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECV_GRADIENT = "RG"
    REDUCE = "REDUCE"
    STEP = "STEP"


COMPUTE_OPS = frozenset({Op.FORWARD, Op.BACKWARD})
SEND_OPS = frozenset({Op.SEND_ACTIVATION, Op.SEND_GRADIENT})
RECV_OPS = frozenset({Op.RECV_ACTIVATION, Op.RECV_GRADIENT})


class Action(NamedTuple):
    """(op, pipeline, stage, microbatch). For REDUCE, `stage` is the bucket; REDUCE and STEP have no pipeline."""

    op: Op
    pipeline: str = ""
    stage: int = 0
    microbatch: int = 0

    def __str__(self) -> str:
        if self.op is Op.STEP:
            return "STEP"
        if self.op is Op.REDUCE:
            return f"REDUCE{self.stage}"
        return f"{self.pipeline}.{self.stage}.{self.op}{self.microbatch}"


ActionLists = Mapping[int, Sequence[Action]]
"""Rank -> what it does, in order."""

HEADER = "# polyreme.actions/1"
_STAGED = re.compile(r"([A-Za-z0-9_@-]+)\.(\d{1,7})\.(F|B|SA|RA|SG|RG)(\d{1,9})", re.ASCII)
_REDUCE = re.compile(r"REDUCE(\d{1,7})", re.ASCII)


def parse_action(text: str) -> Action:
    """The action that `text` names. ValueError if it names none."""
    if text == "STEP":
        return Action(Op.STEP)
    if match := _REDUCE.fullmatch(text):
        return Action(Op.REDUCE, stage=int(match[1]))
    if match := _STAGED.fullmatch(text):
        return Action(Op(match[3]), match[1], int(match[2]), int(match[4]))
    raise ValueError(f"{text!r} is no action; one looks like a.1.F3, REDUCE2 or STEP")


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
