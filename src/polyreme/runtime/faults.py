"""Scripted faults: what a worker is made to do at one action, so that every failure can be tried on purpose."""

import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum

from polyreme.errors import InputError
from polyreme.schedules.action import Action, parse_action


class FaultKind(StrEnum):
    """`raise`: an exception in the worker. `kill`: SIGKILL, as the kernel's out-of-memory killer does.

    `stop`: SIGSTOP; the worker goes on where it was if it gets SIGCONT. `hang`: it sleeps for ever.
    """

    RAISE = "raise"
    KILL = "kill"
    STOP = "stop"
    HANG = "hang"


class InjectedFaultError(RuntimeError):
    """The exception that a fault of kind `raise` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens when `rank` begins `action` of `step`."""

    rank: int
    step: int
    action: Action
    kind: FaultKind

    def __str__(self) -> str:
        return f"rank={self.rank},step={self.step},action={self.action},kind={self.kind}"

    def strike(self, rank: int, step: int, action: Action) -> None:
        """Do it if this is the place."""
        if (rank, step, action) != (self.rank, self.step, self.action):
            return
        match self.kind:
            case FaultKind.RAISE:
                raise InjectedFaultError(f"injected at {action} of step {step}")
            case FaultKind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case FaultKind.HANG:
                while True:
                    time.sleep(3600)


def parse_fault(text: str) -> Fault:
    """The fault that `rank=1,step=2,action=a.1.F3,kind=kill` names. InputError if it names none."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        if set(fields) != {"rank", "step", "action", "kind"}:
            raise ValueError("it needs rank, step, action and kind")
        return Fault(
            int(fields["rank"]), int(fields["step"]), parse_action(fields["action"]), FaultKind(fields["kind"])
        )
    except ValueError as error:
        fix = "write it like rank=1,step=2,action=a.1.F3,kind=kill"
        raise InputError.single(f"fault {text!r}", str(error), fix=fix) from None
