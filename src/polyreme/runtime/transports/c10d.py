"""Transport `c10d`: torch's point-to-point operations between devices of one backend.

gloo keeps messages apart by tag. Other backends ignore tags, so there a channel has a process group of its own.
"""

import time
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from polyreme.runtime.transports.base import Channel, EmulatedLink
from polyreme.runtime.transports.messages import HEADER_BYTES
from polyreme.runtime.transports.works import PendingSends, PostedReceives
from polyreme.schedules.action import RECEIVES_POSTED


class C10dSender:
    """The sending end of a channel."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None) -> None:
        self.channel = channel
        self._pending = PendingSends(channel, group)

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """See `Sender`."""
        kind = self.channel.kind
        buffer = torch.empty(HEADER_BYTES + self.channel.payload_bytes, dtype=torch.uint8, device=payload.device)
        header = bytearray(kind.header(step, microbatch, time.monotonic_ns()))
        buffer[:HEADER_BYTES] = torch.frombuffer(header, dtype=torch.uint8)
        buffer[HEADER_BYTES:].view(kind.dtype).view(kind.shape).copy_(payload)
        self._pending.start(buffer)

    def flush(self) -> None:
        """See `Sender`."""
        self._pending.wait()


class C10dReceiver:
    """The receiving end of a channel; a few receives are posted ahead, so that a message lands while others compute."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None, device: str = "cpu") -> None:
        self.channel, self.device = channel, device
        self._posted = PostedReceives(channel, group)
        self._due: deque[tuple[int, int]] = deque()
        self._link = EmulatedLink(channel.link)

    def expect(self, step: int, microbatches: Sequence[int]) -> None:
        """See `Receiver`."""
        self._due.extend((step, microbatch) for microbatch in microbatches)
        self._post()

    def receive(self, step: int, microbatch: int) -> Tensor:
        """See `Receiver`."""
        assert self._due[0] == (step, microbatch), f"receive of {step, microbatch} while {self._due[0]} is due"
        buffer = self._posted.take()
        self._due.popleft()
        self._post()
        kind = self.channel.kind
        header = buffer[:HEADER_BYTES].cpu().numpy().tobytes()
        sent_ns = kind.check(header, step, microbatch, self.channel.name)
        self._link.wait(sent_ns, buffer.numel())
        return buffer[HEADER_BYTES:].view(kind.dtype).view(kind.shape)

    def _post(self) -> None:
        for _ in range(len(self._posted), min(RECEIVES_POSTED, len(self._due))):
            size = HEADER_BYTES + self.channel.payload_bytes
            self._posted.post(torch.empty(size, dtype=torch.uint8, device=self.device))
