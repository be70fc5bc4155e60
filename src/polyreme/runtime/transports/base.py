"""What every transport offers the executor, and what a channel is.

Each direction of each pair of ranks at each boundary is a channel with a tag of its own; its messages arrive in the
order in which the two action lists name them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polyreme.errors import WorkerLostError
from polyreme.runtime.transports.messages import Kind
from polyreme.specs.device import LinkKind

_NS = 10**9


class PeerLostError(WorkerLostError):
    """The other end of a message is gone; never the root cause of a failure."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One direction between two ranks at one boundary. `name` says which, for errors; `link` is set where emulated.

    `ahead` is how many messages the sender may be ahead of the receiver without waiting.
    """

    kind: Kind
    source: int
    target: int
    name: str
    ahead: int
    link: LinkKind | None = None

    @property
    def payload_bytes(self) -> int:
        """Bytes of one message without its header."""
        return torch.Size(self.kind.shape).numel() * self.kind.dtype.itemsize


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


class EmulatedLink:
    """Holds messages back until a slower link would have delivered them: one at a time, then the latency."""

    def __init__(self, link: LinkKind | None) -> None:
        self.link = link
        self._free_ns = 0

    def wait(self, sent_ns: int, num_bytes: int) -> None:
        """Wait for a message that was sent at `sent_ns`."""
        if self.link is None:
            return
        self._free_ns = max(self._free_ns, sent_ns) + int(num_bytes / self.link.bandwidth_bytes_per_s * _NS)
        early_ns = self._free_ns + int(self.link.latency_s * _NS) - time.monotonic_ns()
        if early_ns > 0:
            time.sleep(early_ns / _NS)


def lost(peers: Sequence[int], error: Exception) -> PeerLostError:
    """The error of a broken connection to one of `peers`."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return PeerLostError(f"the connection to rank {' or '.join(map(str, peers))} broke: {reason}")
