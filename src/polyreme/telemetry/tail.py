"""Follows an event file that is still being written: its last record, at the cost of a few hundred bytes a look."""

import os
from pathlib import Path

from polyreme.specs.events import OPS, RECORD, RECORD_BYTES, RUNNING_NS, Event
from polyreme.telemetry.recorder import CHUNK_BYTES

_BLOCK_BYTES = 4096
_OP_OFFSET = 30
assert _BLOCK_BYTES % RECORD_BYTES == 0


class EventTail:
    """The end of the event file at `path`, which need not exist yet.

    Reads instead of mapping: the writer cuts the file when it closes it, and a mapping beyond the end kills its reader.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._last_start = 0
        self._last: Event | None = None

    def last(self) -> Event | None:
        """The record written last; None if there is none, or the file is gone."""
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY)
            except OSError:
                return None
        start = self._last_start  # read again: its duration is filled in when the action ends
        while True:
            block = os.pread(self._file, _BLOCK_BYTES, start)
            count = _num_used(block)
            if count:
                self._take(block, count - 1, start)
            if count * RECORD_BYTES < _BLOCK_BYTES:
                return self._last
            start += _BLOCK_BYTES

    @property
    def may_have_ended(self) -> bool:
        """Whether the file is full to the end of a chunk: on a full disk the worker goes on without recording."""
        at_end = (self._last_start + RECORD_BYTES) % CHUNK_BYTES == 0
        return at_end and self._last is not None and self._last.duration_ns != RUNNING_NS

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, block: bytes, number: int, start: int) -> None:
        offset = number * RECORD_BYTES
        start_ns, duration_ns, step, microbatch, kib, stage, op, pipeline = RECORD.unpack_from(block, offset)
        if op < len(OPS):
            self._last = Event(start_ns, duration_ns, step, microbatch, kib, stage, OPS[op], pipeline)
            self._last_start = start + offset


def _num_used(block: bytes) -> int:
    """Records before the unused space, by bisection: used ones come first."""
    low, high = 0, len(block) // RECORD_BYTES
    while low < high:
        middle = (low + high) // 2
        if block[middle * RECORD_BYTES + _OP_OFFSET]:
            low = middle + 1
        else:
            high = middle
    return low
