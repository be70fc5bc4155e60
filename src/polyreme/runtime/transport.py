"""Messages over the boundaries of a plan: non-blocking sends, receives posted ahead, links slowed where emulated.

Each direction of each pair of ranks at each boundary is a channel with a tag of its own; its messages arrive in the
order in which the two action lists name them.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from polyreme.errors import WorkerLostError
from polyreme.runtime.messages import HEADER_BYTES, pack, unpack
from polyreme.schedules.action import RECEIVES_POSTED
from polyreme.specs.device import LinkKind

_NS = 10**9


class PeerLostError(WorkerLostError):
    """The other end of a message is gone; never the root cause of a failure."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One direction between two ranks at one boundary. `link` is set where the link is emulated."""

    tag: int
    source: int
    target: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    link: LinkKind | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of one message, header included."""
        return HEADER_BYTES + torch.Size(self.shape).numel() * self.dtype.itemsize


class Sender(Protocol):
    """The sending end of a channel."""

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """Start sending. PeerLostError if the receiver is gone."""
        ...

    def flush(self) -> None:
        """Wait until every message has left."""
        ...


class Receiver(Protocol):
    """The receiving end of a channel."""

    def expect(self, step: int, microbatches: Sequence[int]) -> None:
        """Say which messages are due next, in order."""
        ...

    def receive(self, step: int, microbatch: int) -> Tensor:
        """The payload of the next message. MessageError if it is another one; PeerLostError if the sender is gone."""
        ...


class ChannelSender:
    """The sending end of a channel; keeps each buffer until it has left."""

    def __init__(self, channel: Channel, plan_digest: str) -> None:
        self.channel = channel
        self.plan_digest = plan_digest
        self._under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """Start sending. PeerLostError if the receiver is gone."""
        while self._under_way and self._under_way[0][0].is_completed():
            self._wait_oldest()
        buffer = pack(self.plan_digest, step, microbatch, self.channel.tag, payload, time.monotonic_ns())
        try:
            work = dist.isend(buffer, self.channel.target, tag=self.channel.tag)
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error
        self._under_way.append((work, buffer))

    def flush(self) -> None:
        """Wait until every message has left."""
        while self._under_way:
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        work, _ = self._under_way.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error


class ChannelReceiver:
    """The receiving end of a channel."""

    def __init__(self, channel: Channel, plan_digest: str) -> None:
        self.channel = channel
        self.plan_digest = plan_digest
        self._like = torch.empty(channel.shape, dtype=channel.dtype, device="meta")
        self._posted: deque[tuple[Any, Tensor]] = deque()
        self._due: deque[tuple[int, int]] = deque()
        self._link_free_ns = 0

    def expect(self, step: int, microbatches: Sequence[int]) -> None:
        """Say which messages are due next, in order, and post the first receives."""
        self._due.extend((step, microbatch) for microbatch in microbatches)
        self._post()

    def receive(self, step: int, microbatch: int) -> Tensor:
        """The payload of the next message. MessageError if it is another one; PeerLostError if the sender is gone."""
        assert self._due[0] == (step, microbatch), f"receive of {step, microbatch} while {self._due[0]} is due"
        work, buffer = self._posted.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.source], error) from error
        self._due.popleft()
        self._post()
        payload, sent_ns = unpack(buffer, self.plan_digest, step, microbatch, self.channel.tag, self._like)
        if self.channel.link is not None:
            self._wait_for_link(self.channel.link, sent_ns, buffer.numel())
        return payload

    def _post(self) -> None:
        for _ in range(len(self._posted), min(RECEIVES_POSTED, len(self._due))):
            buffer = torch.empty(self.channel.num_bytes, dtype=torch.uint8)
            try:
                work = dist.irecv(buffer, self.channel.source, tag=self.channel.tag)
            except RuntimeError as error:
                raise lost([self.channel.source], error) from error
            self._posted.append((work, buffer))

    def _wait_for_link(self, link: LinkKind, sent_ns: int, num_bytes: int) -> None:
        """Hold the message back until the emulated link would have delivered it: one at a time, then the latency."""
        self._link_free_ns = max(self._link_free_ns, sent_ns) + int(num_bytes / link.bandwidth_bytes_per_s * _NS)
        early_ns = self._link_free_ns + int(link.latency_s * _NS) - time.monotonic_ns()
        if early_ns > 0:
            time.sleep(early_ns / _NS)


def lost(peers: Sequence[int], error: RuntimeError) -> PeerLostError:
    """The error of a broken connection to one of `peers`."""
    return PeerLostError(f"the connection to rank {' or '.join(map(str, peers))} broke: {str(error).splitlines()[0]}")
