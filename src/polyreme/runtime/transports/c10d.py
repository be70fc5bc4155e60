"""Transport `c10d`: torch's point-to-point operations between devices of one backend.

gloo keeps messages apart by tag. Other backends ignore tags, so there a channel has a process group of its own.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from polyreme.runtime.transports.base import Channel, EmulatedLink, lost
from polyreme.runtime.transports.messages import HEADER_BYTES
from polyreme.schedules.action import RECEIVES_POSTED


class C10dSender:
    """The sending end of a channel; keeps each buffer until it has left."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None) -> None:
        self.channel, self.group = channel, group
        self._under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """See `Sender`."""
        while self._under_way and self._under_way[0][0].is_completed():
            self._wait_oldest()
        kind = self.channel.kind
        buffer = torch.empty(HEADER_BYTES + self.channel.payload_bytes, dtype=torch.uint8, device=payload.device)
        header = bytearray(kind.header(step, microbatch, time.monotonic_ns()))
        buffer[:HEADER_BYTES] = torch.frombuffer(header, dtype=torch.uint8)
        buffer[HEADER_BYTES:].view(kind.dtype).view(kind.shape).copy_(payload)
        try:
            work = dist.isend(buffer, self.channel.target, group=self.group, tag=kind.tag)
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error
        self._under_way.append((work, buffer))

    def flush(self) -> None:
        """See `Sender`."""
        while self._under_way:
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        work, _ = self._under_way.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error


class C10dReceiver:
    """The receiving end of a channel; a few receives are posted ahead, so that a message lands while others compute."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None, device: str = "cpu") -> None:
        self.channel, self.device, self.group = channel, device, group
        self._posted: deque[tuple[Any, Tensor]] = deque()
        self._due: deque[tuple[int, int]] = deque()
        self._link = EmulatedLink(channel.link)

    def expect(self, step: int, microbatches: Sequence[int]) -> None:
        """See `Receiver`."""
        self._due.extend((step, microbatch) for microbatch in microbatches)
        self._post()

    def receive(self, step: int, microbatch: int) -> Tensor:
        """See `Receiver`."""
        assert self._due[0] == (step, microbatch), f"receive of {step, microbatch} while {self._due[0]} is due"
        work, buffer = self._posted.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.source], error) from error
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
            buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
            try:
                work = dist.irecv(buffer, self.channel.source, group=self.group, tag=self.channel.kind.tag)
            except RuntimeError as error:
                raise lost([self.channel.source], error) from error
            self._posted.append((work, buffer))
