"""Transport `staged`: through the host's memory, for devices that share no backend.

A message is cut in chunks: while one is on the wire the next is copied from the device, and on the other side the one
before is copied to the device. The header goes first, as a message of its own.
"""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from polyreme.runtime.transports.base import Channel, EmulatedLink
from polyreme.runtime.transports.messages import HEADER_BYTES
from polyreme.runtime.transports.works import PendingSends, PostedReceives
from polyreme.units import MIB

CHUNK_BYTES = 2 * MIB


def _chunks(num_bytes: int) -> list[int]:
    """Sizes of a message's chunks."""
    whole, rest = divmod(num_bytes, CHUNK_BYTES)
    return [CHUNK_BYTES] * whole + [rest] * (rest > 0)


class StagedSender:
    """The sending end of a channel."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None) -> None:
        self.channel = channel
        self._pending = PendingSends(channel, group)

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """See `Sender`."""
        header = bytearray(self.channel.kind.header(step, microbatch, time.monotonic_ns()))
        self._pending.start(torch.frombuffer(header, dtype=torch.uint8))
        content = payload.contiguous().view(-1).view(torch.uint8)
        for chunk in torch.split(content, CHUNK_BYTES):
            host = torch.empty(chunk.shape, dtype=torch.uint8, pin_memory=chunk.is_cuda)
            self._pending.start(host.copy_(chunk))

    def flush(self) -> None:
        """See `Sender`."""
        self._pending.wait()


class StagedReceiver:
    """The receiving end of a channel; all chunks of the next message are posted."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None = None, device: str = "cpu") -> None:
        self.channel, self.device = channel, device
        self._posted = PostedReceives(channel, group)
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
        header = self._posted.take().numpy().tobytes()
        sent_ns = kind.check(header, step, microbatch, self.channel.name)
        content = torch.empty(self.channel.payload_bytes, dtype=torch.uint8, device=self.device)
        first = 0
        while self._posted:
            chunk = self._posted.take()
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
            self._posted.post(torch.empty(size, dtype=torch.uint8, pin_memory=self.device != "cpu"))
