"""Driver `null`: accepts work and does none of it; for measuring what the runtime itself costs."""

from collections.abc import Callable
from typing import Any

from polyreme.drivers.base import DeviceInfo, Fence


class NullDriver:
    """A device that is always ready and computes nothing."""

    name = "null"

    def probe(self) -> DeviceInfo:
        """Always there, with memory without end."""
        return DeviceInfo(name=self.name, torch_device="cpu", memory_bytes=float("inf"))

    def submit(self, work: Callable[[], Any]) -> Fence:
        """Take the work and forget it."""
        del work
        return Fence()

    def sync(self, fence: Fence) -> Any:
        """Nothing to wait for: the result is always None."""
        return fence.result
