"""Driver `cuda`: one NVIDIA GPU through torch.cuda. Written against its documented interface; not run on hardware.

A worker's computes all go to the device's current stream, in order; a fence is an event after the last of them.
"""

from collections.abc import Callable
from typing import Any

from polyreme.drivers.base import DeviceInfo, Fence
from polyreme.drivers.numa import node_of_pci
from polyreme.drivers.queue import MOST_AHEAD, SubmissionQueue
from polyreme.errors import InputError


class CudaDriver:
    """GPU number `index` of this machine, of at most `memory_bytes`. `cuda` is torch.cuda or stands in for it."""

    name = "cuda"

    def __init__(self, memory_bytes: float, index: int, cuda: Any = None, most_ahead: int = MOST_AHEAD) -> None:
        self.memory_bytes, self.index = memory_bytes, index
        self._cuda = cuda
        self.queue = SubmissionQueue(most_ahead)

    @property
    def cuda(self) -> Any:
        """torch.cuda, loaded when it is needed."""
        if self._cuda is None:
            import torch  # noqa: PLC0415 - the launcher and the planner never need it

            self._cuda = torch.cuda
        return self._cuda

    def probe(self) -> DeviceInfo:
        """Find the GPU and make it the current one. InputError if torch has no CUDA or the machine too few GPUs."""
        if not self.cuda.is_available():
            raise InputError.single("cuda", "torch finds no CUDA device here", fix="install torch built for CUDA")
        count = self.cuda.device_count()
        if self.index >= count:
            problem = f"GPU {self.index} was asked for, the machine has {count}"
            raise InputError.single("cuda", problem, fix="correct the devices of this node in the cluster file")
        self.cuda.set_device(self.index)
        found = self.cuda.get_device_properties(self.index)
        address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        return DeviceInfo(
            name=self.name,
            torch_device=f"cuda:{self.index}",
            memory_bytes=min(self.memory_bytes, float(found.total_memory)),
            numa_node=node_of_pci(address),
        )

    def submit(self, work: Callable[[], Any]) -> Fence:
        """Put `work` on the device's stream; waits only if too much is unfinished."""
        result = work()
        event = self.cuda.Event()
        event.record()
        fence = Fence(result, event)
        self.queue.add(fence)
        return fence

    def sync(self, fence: Fence) -> Any:
        """Wait for the fence's event."""
        self.queue.wait(fence)
        return fence.result
