"""The queue of an asynchronous device: how far the host may run ahead, and how it waits."""

import time
from collections import deque
from typing import Protocol

from polyreme.drivers.base import Fence

MOST_AHEAD = 64
"""Fences that may be unfinished at once. Memory of work that has not run is held, so a host must not run away."""
SPIN_S = 50e-6
"""How long a wait asks again and again before it blocks: most fences are nearly done, and to be woken costs more."""


class Event(Protocol):
    """A mark in a device's queue, as accelerator APIs have it."""

    def query(self) -> bool:
        """Whether the device has reached it."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class SubmissionQueue:
    """Fences in the order of submission. Whoever submits beyond `most_ahead` waits for the oldest."""

    def __init__(self, most_ahead: int = MOST_AHEAD) -> None:
        self.most_ahead = most_ahead
        self._unfinished: deque[Fence] = deque()

    def __len__(self) -> int:
        return len(self._unfinished)

    def add(self, fence: Fence) -> None:
        """Take in a fence."""
        self._unfinished.append(fence)
        while len(self._unfinished) > self.most_ahead:
            wait_for(self._unfinished.popleft().event)

    def wait(self, fence: Fence) -> None:
        """Wait for a fence; all before it have finished then, too."""
        wait_for(fence.event)
        while self._unfinished and self._unfinished[0].event.query():
            self._unfinished.popleft()


def wait_for(event: Event) -> None:
    """Spin for a moment, then block."""
    deadline = time.perf_counter() + SPIN_S
    while not event.query():
        if time.perf_counter() >= deadline:
            event.synchronize()
            return
