"""Writes a worker's event file from its hot loop: one record per action, on disk also if the worker is killed.

The file is a shared mapping, so what was written survives the process. It grows in chunks that are filled with zeros
first: a full disk then stops the recording (see `num_dropped`), never the training.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Protocol

from polyreme.specs.events import RECORD, RECORD_BYTES, RUNNING_NS

CHUNK_BYTES = 2**20
assert CHUNK_BYTES % RECORD_BYTES == 0
assert CHUNK_BYTES % mmap.ALLOCATIONGRANULARITY == 0

_DURATION = struct.Struct("<q")
_DURATION_OFFSET = 8
_NONE_RUNNING = -1


class Recorder(Protocol):
    """What an executor tells about its actions: one `begin` and one `end` each, never nested."""

    def begin(self, op_number: int, pipeline: int, stage: int, microbatch: int, step: int, kib: int = 0) -> None:
        """An action starts; numbers as in `specs.events`, too large ones are clamped."""

    def end(self) -> None:
        """The action that runs has ended."""

    def close(self) -> None:
        """Nothing more will be recorded."""


class NullRecorder:
    """Records nothing."""

    def begin(self, op_number: int, pipeline: int, stage: int, microbatch: int, step: int, kib: int = 0) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class EventRecorder:
    """Appends the records of one worker to a new file at `path`. FileExistsError if there is one already."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.num_dropped = 0
        self._full = False
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._map: mmap.mmap | None = None
        self._chunk_start = -CHUNK_BYTES
        self._next = CHUNK_BYTES  # full: the first record maps the first chunk
        self._running = _NONE_RUNNING
        self._start_ns = 0

    def begin(self, op_number: int, pipeline: int, stage: int, microbatch: int, step: int, kib: int = 0) -> None:
        """Write the record of an action that starts now, as running. Never raises for large numbers: clamps them."""
        if self._next == CHUNK_BYTES and not self._grow():
            self.num_dropped += 1
            return
        self._running = self._next
        self._next += RECORD_BYTES
        self._start_ns = time.monotonic_ns()
        try:
            RECORD.pack_into(
                self._map,  # type: ignore[arg-type]
                self._running,
                self._start_ns,
                RUNNING_NS,
                step,
                microbatch,
                kib,
                stage,
                op_number,
                pipeline,
            )
        except struct.error:
            self._begin_clamped(op_number, pipeline, stage, microbatch, step, kib)

    def end(self) -> None:
        """Fill in the duration of the action that runs; nothing if none does."""
        if self._running >= 0:
            _DURATION.pack_into(
                self._map,  # type: ignore[arg-type]
                self._running + _DURATION_OFFSET,
                time.monotonic_ns() - self._start_ns,
            )
            self._running = _NONE_RUNNING

    def close(self) -> None:
        """Cut the unused space off. Later calls of `begin` are counted as dropped."""
        if self._file is None:
            return
        used_bytes = self._chunk_start + self._next
        if self._map is not None:
            self._map.close()
        os.ftruncate(self._file, used_bytes)
        os.close(self._file)
        self._file, self._map = None, None
        self._chunk_start, self._next, self._running = used_bytes - CHUNK_BYTES, CHUNK_BYTES, _NONE_RUNNING

    def _begin_clamped(self, op_number: int, pipeline: int, stage: int, microbatch: int, step: int, kib: int) -> None:
        u8, u16, u32 = 2**8 - 1, 2**16 - 1, 2**32 - 1
        values = ((step, u32), (microbatch, u32), (kib, u32), (stage, u16), (op_number, u8), (pipeline, u8))
        clamped = [min(max(int(value), 0), limit) for value, limit in values]
        RECORD.pack_into(self._map, self._running, self._start_ns, RUNNING_NS, *clamped)  # type: ignore[arg-type]

    def _grow(self) -> bool:
        """Map the next chunk of the file; False if there is no space (not tried again), or the recorder is closed."""
        if self._file is None or self._full:
            return False
        start = self._chunk_start + CHUNK_BYTES
        try:
            # Written, not only declared: a hole that the disk cannot fill later would kill the process (SIGBUS).
            self._full = os.pwrite(self._file, bytes(CHUNK_BYTES), start) != CHUNK_BYTES
            chunk = None if self._full else mmap.mmap(self._file, CHUNK_BYTES, offset=start)
        except OSError:
            self._full, chunk = True, None
        if chunk is None:
            return False
        if self._map is not None:
            self._map.close()
        self._map, self._chunk_start, self._next = chunk, start, 0
        return True
