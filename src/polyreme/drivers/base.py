"""What every device driver does, what its devices can do, and how many bytes a device may hold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from polyreme.errors import OutOfDeviceMemoryError
from polyreme.specs.fields import Precision
from polyreme.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What all devices of a driver have in common, known without any of them.

    `backend`: the c10d backend that moves its tensors; devices of one backend send and sum among themselves.
    `host_memory`: its tensors lie in the host's memory, so that a host process can share them.
    `asynchronous`: work goes on after `submit` has returned.
    """

    backend: str
    host_memory: bool
    asynchronous: bool
    precisions: frozenset[Precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What `probe` found: the torch device to build on, its memory, and the NUMA node that it is next to, if known."""

    name: str
    torch_device: str
    memory_bytes: float
    numa_node: int | None = None


@dataclass(slots=True)
class Fence:
    """A point in a device's queue. `result` is valid once `sync` has returned; `event` is the driver's own mark."""

    result: Any = None
    event: Any = None


class DeviceDriver(Protocol):
    """One device. Work is submitted in order and has finished once its fence is synchronised.

    `drivers.conformance` says in code what any implementation must do.
    """

    @property
    def name(self) -> str:
        """Name of the driver, as catalogue and cluster files write it."""
        ...

    def probe(self) -> DeviceInfo:
        """Find the device. InputError if it is not there."""
        ...

    def submit(self, work: Callable[[], Any]) -> Fence:
        """Start `work`; errors it raises come out of `submit` or `sync`."""
        ...

    def sync(self, fence: Fence) -> Any:
        """Wait until the work of `fence` has finished and return its result."""
        ...


class MemoryLedger:
    """Bytes held on one device, by named part. Refuses what would not fit before it is used."""

    def __init__(self, device: str, capacity_bytes: float) -> None:
        self.device = device
        self.capacity_bytes = capacity_bytes
        self.held_bytes: dict[str, int] = {}
        self.peak_bytes: dict[str, int] = {}
        self._peak_total = 0

    def hold(self, part: str, num_bytes: int) -> None:
        """Add bytes to a part. OutOfDeviceMemoryError if the device cannot hold them."""
        self.held_bytes[part] = self.held_bytes.get(part, 0) + num_bytes
        total = sum(self.held_bytes.values())
        if total > self.capacity_bytes:
            parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.held_bytes.items() if size)
            raise OutOfDeviceMemoryError(
                f"{self.device} holds {format_bytes(total)} of {format_bytes(self.capacity_bytes)} ({parts})",
                fix="plan again with a smaller memory_fraction, fewer layers on this device or smaller microbatches",
            )
        if total > self._peak_total:
            self._peak_total, self.peak_bytes = total, dict(self.held_bytes)

    def release(self, part: str, num_bytes: int) -> None:
        """Take bytes of a part off the device."""
        self.held_bytes[part] -= num_bytes
