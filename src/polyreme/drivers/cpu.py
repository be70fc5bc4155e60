"""Driver `cpu`: this machine's processor, one thread per worker; work runs where it is submitted."""

from collections.abc import Callable
from typing import Any

from polyreme.drivers.base import DeviceInfo, Fence


class CpuDriver:
    """The processor as a device with `memory_bytes` of memory."""

    name = "cpu"

    def __init__(self, memory_bytes: float) -> None:
        self.memory_bytes = memory_bytes

    def probe(self) -> DeviceInfo:
        """Always there."""
        return DeviceInfo(name=self.name, torch_device="cpu", memory_bytes=self.memory_bytes)

    def submit(self, work: Callable[[], Any]) -> Fence:
        """Run `work` to its end."""
        return Fence(work())

    def sync(self, fence: Fence) -> Any:
        """The result; the work has ended already."""
        return fence.result
