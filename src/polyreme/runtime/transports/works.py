"""torch's non-blocking point-to-point operations on one channel, with errors that say which peer is lost."""

from collections import deque
from typing import Any

import torch.distributed as dist
from torch import Tensor

from polyreme.runtime.transports.base import Channel, lost


class PendingSends:
    """Sends under way, oldest first; each buffer is kept until it has left."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None) -> None:
        self.channel, self.group = channel, group
        self._under_way: deque[tuple[Any, Tensor]] = deque()

    def start(self, buffer: Tensor) -> None:
        """Send a buffer; those that have left already are let go. PeerLostError if the receiver is gone."""
        while self._under_way and self._under_way[0][0].is_completed():
            self._wait_oldest()
        try:
            work = dist.isend(buffer, self.channel.target, group=self.group, tag=self.channel.kind.tag)
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error
        self._under_way.append((work, buffer))

    def wait(self) -> None:
        """Wait until all have left."""
        while self._under_way:
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        work, _ = self._under_way.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.target], error) from error


class PostedReceives:
    """Receives that are open, in the order in which their buffers will fill."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup | None) -> None:
        self.channel, self.group = channel, group
        self._open: deque[tuple[Any, Tensor]] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def post(self, buffer: Tensor) -> None:
        """Open a receive into a buffer. PeerLostError if the sender is gone."""
        try:
            work = dist.irecv(buffer, self.channel.source, group=self.group, tag=self.channel.kind.tag)
        except RuntimeError as error:
            raise lost([self.channel.source], error) from error
        self._open.append((work, buffer))

    def take(self) -> Tensor:
        """Wait for the oldest and return its buffer."""
        work, buffer = self._open.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise lost([self.channel.source], error) from error
        return buffer
