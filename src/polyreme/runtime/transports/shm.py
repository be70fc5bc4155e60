"""Transport `shm`: a ring of slots in memory that two workers of one node share, and a doorbell.

The memory has no name, so that nothing of it can be left behind: the receiver makes it and passes it over a Unix socket
in the abstract namespace. The same socket is the doorbell: a byte to the receiver for every slot filled, one back for
every slot that is free again. Either end notices at once when the other is gone.
"""

import contextlib
import mmap
import os
import socket
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from polyreme.runtime.transports.base import Channel, EmulatedLink, PeerLostError, lost
from polyreme.runtime.transports.messages import HEADER_BYTES

MOST_AHEAD = 128
"""A doorbell holds some 270 rings; a channel whose sender may be further ahead than this takes another transport."""
_ALIGNMENT = 64
_FILLED = _FREE = b"\x01"


class SharedRing:
    """Slots of one channel's messages in a memory file."""

    def __init__(self, channel: Channel, handle: int) -> None:
        kind = channel.kind
        self.num_slots = channel.ahead + 1
        stride = HEADER_BYTES + -(-channel.payload_bytes // _ALIGNMENT) * _ALIGNMENT
        self.memory = mmap.mmap(handle, max(1, stride * self.num_slots))
        self.headers = [stride * slot for slot in range(self.num_slots)]
        count = torch.Size(kind.shape).numel()
        self.payloads = [
            torch.frombuffer(self.memory, dtype=kind.dtype, count=count, offset=start + HEADER_BYTES).view(kind.shape)
            if count
            else torch.empty(kind.shape, dtype=kind.dtype)
            for start in self.headers
        ]

    @staticmethod
    def num_bytes(channel: Channel) -> int:
        """Size of the memory of a channel."""
        stride = HEADER_BYTES + -(-channel.payload_bytes // _ALIGNMENT) * _ALIGNMENT
        return max(1, stride * (channel.ahead + 1))


class SharedSender:
    """The sending end. Connects to a receiver that listens already; `take_memory` once it has accepted."""

    def __init__(self, channel: Channel, address: str) -> None:
        self.channel = channel
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bell.connect(address)
        except OSError as error:
            raise lost([channel.target], error) from error
        self._ring: SharedRing | None = None
        self._num_sent = 0
        self._num_free = channel.ahead + 1

    def take_memory(self) -> None:
        """Map what the receiver hands over. PeerLostError if it is gone."""
        try:
            _, handles, _, _ = socket.recv_fds(self._bell, 1, 1)
        except OSError as error:
            raise lost([self.channel.target], error) from error
        if not handles:
            raise PeerLostError(f"the connection to rank {self.channel.target} broke: it was closed")
        self._ring = SharedRing(self.channel, handles[0])
        os.close(handles[0])

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """See `Sender`. Waits only while all slots are full."""
        self._take_free(wait=False)
        while self._num_free == 0:
            self._take_free(wait=True)
        ring = self._ring
        assert ring is not None, "the memory was not taken"
        slot = self._num_sent % ring.num_slots
        start = ring.headers[slot]
        ring.payloads[slot].copy_(payload)
        header = self.channel.kind.header(step, microbatch, time.monotonic_ns())
        ring.memory[start : start + HEADER_BYTES] = header
        try:
            self._bell.send(_FILLED)
        except OSError as error:
            raise lost([self.channel.target], error) from error
        self._num_sent += 1
        self._num_free -= 1

    def flush(self) -> None:
        """See `Sender`. What is in a slot has left."""

    def _take_free(self, *, wait: bool) -> None:
        try:
            freed = self._bell.recv(4096, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise lost([self.channel.target], error) from error
        if not freed:
            raise PeerLostError(f"the connection to rank {self.channel.target} broke: it was closed")
        self._num_free += len(freed)


class SharedReceiver:
    """The receiving end. Listens from the start; the sender is accepted with the first message."""

    def __init__(self, channel: Channel, address: str) -> None:
        self.channel = channel
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(1)
        self._handle = os.memfd_create(f"polyreme-{channel.kind.tag}", os.MFD_CLOEXEC)
        os.ftruncate(self._handle, SharedRing.num_bytes(channel))
        self._ring = SharedRing(channel, self._handle)
        self._bell: socket.socket | None = None
        self._num_received = 0
        self._link = EmulatedLink(channel.link)

    def accept(self) -> None:
        """Take the sender's connection and hand it the memory."""
        assert self._listener is not None
        self._bell, _ = self._listener.accept()
        self._listener.close()
        self._listener = None
        try:
            socket.send_fds(self._bell, [_FREE], [self._handle])
        except OSError as error:
            raise lost([self.channel.source], error) from error
        os.close(self._handle)

    def expect(self, step: int, microbatches: Sequence[int]) -> None:
        """See `Receiver`. Slots are always open."""

    def receive(self, step: int, microbatch: int) -> Tensor:
        """See `Receiver`."""
        assert self._bell is not None, "the sender was not accepted"
        try:
            rung = self._bell.recv(1)
        except OSError as error:
            raise lost([self.channel.source], error) from error
        if not rung:
            raise PeerLostError(f"the connection to rank {self.channel.source} broke: it was closed")
        slot, ring = self._num_received % self._ring.num_slots, self._ring
        start = ring.headers[slot]
        header = ring.memory[start : start + HEADER_BYTES]
        sent_ns = self.channel.kind.check(header, step, microbatch, self.channel.name)
        payload = ring.payloads[slot].clone()
        self._num_received += 1
        with contextlib.suppress(OSError):  # a sender that has ended well needs no more slots
            self._bell.send(_FREE)
        self._link.wait(sent_ns, HEADER_BYTES + self.channel.payload_bytes)
        return payload


def address_of(run_token: str, tag: int) -> str:
    """Where the receiver of a channel listens: a name in the abstract namespace, gone with its process."""
    return f"\0polyreme-{run_token}-{tag}"
