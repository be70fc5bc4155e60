"""Driver `emulated`: a processor slowed to a fraction of a core, so that unlike devices exist on one machine.

The slowing follows CPU time, not wall time: work that consumed c seconds of CPU on a device of core fraction f ends
c / f seconds after it began. Other load on the machine therefore does not distort the ratio between devices, as long
as each worker gets its fraction.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from polyreme.drivers.base import DeviceInfo, Fence

CORE_SHARE = 0.5
"""Share of the machine's cores that all emulated devices together may use. What is left carries messages, and absorbs
other load: two workers that compete for one core would no longer keep their ratio."""


def core_fractions(speeds: Sequence[float], num_cores: int) -> list[float]:
    """Fraction of one core for each relative speed: in proportion, none above 1, their sum within the cores here.

    Speeds that are such fractions already stay as they are.
    """
    scale = min(1.0, 1.0 / max(speeds), CORE_SHARE * num_cores / sum(speeds))
    return [speed * scale for speed in speeds]


class EmulatedDriver:
    """A device that runs at `core_fraction` of one core."""

    name = "emulated"

    def __init__(self, memory_bytes: float, core_fraction: float) -> None:
        self.memory_bytes = memory_bytes
        self.core_fraction = core_fraction

    def probe(self) -> DeviceInfo:
        """Always there."""
        return DeviceInfo(name=self.name, torch_device="cpu", memory_bytes=self.memory_bytes)

    def submit(self, work: Callable[[], Any]) -> Fence:
        """Run `work`, then wait until the slowed device would have finished it."""
        started, cpu_before = time.perf_counter(), time.thread_time()
        result = work()
        cpu_s = time.thread_time() - cpu_before
        remaining = started + cpu_s / self.core_fraction - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)
        return Fence(result)

    def sync(self, fence: Fence) -> Any:
        """The result; `submit` has waited already."""
        return fence.result
