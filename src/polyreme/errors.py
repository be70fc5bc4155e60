"""The one tree of errors that reach a user, and the exit code of each.

PolyremeError
├── InputError              2   a file or argument is wrong; holds every fault found
├── InfeasibleError         3   no plan fits; says which limit, by how much, what would fit
├── WorkerLostError         4   a worker died, raised or stalled; names rank, stage, device, action
├── OutOfDeviceMemoryError  5   a device would hold more bytes than it has
├── DivergedError           6   the loss is no longer a finite number
└── InternalError          70   our own bug; names the log file

Every message says what happened, where, why, and what to do. `assert` is for our own bugs only.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class PolyremeError(Exception):
    """Base of all errors shown to a user. `fix` is the next thing to try, as one sentence."""

    exit_code = 70

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong in an input: `source` is a file (with line if known) or an argument."""

    source: str
    path: str = ""
    problem: str
    fix: str | None = None

    def __str__(self) -> str:
        where = f"{self.source}: {self.path}" if self.path else self.source
        return f"{where}: {self.problem}" + (f"; {self.fix}" if self.fix else "")


class InputError(PolyremeError):
    """A file or an argument is not valid. Holds every fault found; its text shows the first `MAX_SHOWN`."""

    exit_code = 2
    MAX_SHOWN = 30

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{count} fault{'s' if count != 1 else ''} in the input"
        lines = [head, *(f"  {fault}" for fault in self.faults[: self.MAX_SHOWN])]
        if count > self.MAX_SHOWN:
            lines.append(f"  ... and {count - self.MAX_SHOWN} more")
        super().__init__("\n".join(lines))

    @classmethod
    def single(cls, source: str, problem: str, *, path: str = "", fix: str | None = None) -> "InputError":
        """An input error with one fault."""
        return cls([Fault(source=source, path=path, problem=problem, fix=fix)])


class InfeasibleError(PolyremeError):
    """No plan satisfies the limits. `limit` names the binding one, `changes` the nearest that fit."""

    exit_code = 3

    def __init__(self, message: str, *, limit: str, shortfall: str, changes: Sequence[str]) -> None:
        self.limit = limit
        self.shortfall = shortfall
        self.changes = tuple(changes)
        lines = [message, f"  limit: {limit}, short by {shortfall}"]
        lines += [f"  would fit: {change}" for change in self.changes]
        super().__init__("\n".join(lines))


class WorkerLostError(PolyremeError):
    """A worker of a run died, raised or stalled; the run was ended."""

    exit_code = 4


class OutOfDeviceMemoryError(PolyremeError):
    """A device was asked to hold more bytes than its capacity."""

    exit_code = 5


class DivergedError(PolyremeError):
    """The loss or a gradient is no longer finite."""

    exit_code = 6


class InternalError(PolyremeError):
    """A bug in polyreme itself."""

    exit_code = 70
