"""Transport `staged`: through the host's memory, for devices that share no backend.

A message is cut in chunks: while one is on the wire the next is copied from the device, and on the other side the one
before is copied to the device. The header goes first, as a message of its own.
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
from polyreme.units import MIB

CHUNK_BYTES = 2 * MIB


def _chunks(num_bytes: int) -> list[int]:
    """Sizes of a message's chunks."""
    whole, rest = divmod(num_bytes, CHUNK_BYTES)
    return [CHUNK_BYTES] * whole + [rest] * (rest > 0)


class StagedSender:
    """The sending end; keeps each host buffer until it has left."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None) -> None:
        self.channel, self.group = channel, group
        self._under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """See `Sender`."""
        while self._under_way and self._under_way[0][0].is_completed():
            self._wait_oldest()
        header = bytearray(self.channel.kind.header(step, microbatch, time.monotonic_ns()))
        self._start(torch.frombuffer(header, dtype=torch.uint8))
        content = payload.contiguous().view(-1).view(torch.uint8)
        for chunk in torch.split(content, CHUNK_BYTES):
            host = torch.empty(chunk.shape, dtype=torch.uint8, pin_memory=chunk.is_cuda)
            host.copy_(chunk)
            self._start(host)

    def flush(self) -> None:
        """See `Sender`."""
        while self._under_way:
            self._wait_oldest()

    def _start(self, buffer: Tensor) -> None:
        try:
            work = dist.isend(buffer, self.channel.target, group=self.group, tag=self.channel.kind.tag)
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error
        self._under_way.append((work, buffer))

    def _wait_oldest(self) -> None:
        work, _ = self._under_way.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error


class StagedReceiver:
    """The receiving end; all chunks of the next message are posted."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None, device: str = "cpu") -> None:
        self.channel, self.group, self.device = channel, group, device
        self._posted: deque[tuple[Any, Tensor]] = deque()
        self._left = 0
        self._link = EmulatedLink(channel.link)

    def expect(self, step: int, microbatches: Sequence[int]) -> None:
        """See `Receiver`."""
        del step
        self._left += len(microbatches)
        if not self._posted:
            self._post()

    def receive(self, step: int, microbatch: int) -> Tensor:
        """See `Receiver`."""
        kind = self.channel.kind
        header = self._wait_next().numpy().tobytes()
        sent_ns = kind.check(header, step, microbatch, self.channel.name)
        content = torch.empty(self.channel.payload_bytes, dtype=torch.uint8, device=self.device)
        first = 0
        while self._posted:
            chunk = self._wait_next()
            content[first : first + chunk.numel()].copy_(chunk, non_blocking=True)
            first += chunk.numel()
        self._post()
        self._link.wait(sent_ns, HEADER_BYTES + content.numel())
        return content.view(kind.dtype).view(kind.shape)

    def _post(self) -> None:
        if self._left == 0:
            return
        self._left -= 1
        for size in (HEADER_BYTES, *_chunks(self.channel.payload_bytes)):
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self.device != "cpu")
            try:
                work = dist.irecv(buffer, self.channel.source, group=self.group, tag=self.channel.kind.tag)
            except RuntimeError as error:
                raise lost([self.channel.source], error) from error
            self._posted.append((work, buffer))

    def _wait_next(self) -> Tensor:
        work, buffer = self._posted.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.source], error) from error
        return buffer
