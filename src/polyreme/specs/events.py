"""The event record of a run: 32 bytes per action, in one append-only file per worker.

Layout, little endian: start ns (i64), duration ns (i64, -1 while the action runs), step (u32), microbatch (u32),
bytes moved in KiB (u32), stage (u16), op (u8), pipeline (u8, position among the plan's running pipelines).
A worker writes the record when an action starts and fills in the duration when it ends, so that the file of a killed
worker ends with what it was doing. Unused space at the end of a file is zero: op numbers start at 1.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

RECORD = struct.Struct("<qqIIIHBB")
RECORD_BYTES = RECORD.size
RUNNING_NS = -1
assert RECORD_BYTES == 32

OPS = ("", "F", "B", "SA", "RA", "SG", "RG", "REDUCE", "STEP", "I", "W", "NORM", "EVAL")
"""Op number -> text form of the action's op; 0 is unused space."""
OP_NUMBERS = {text: number for number, text in enumerate(OPS) if text}


class Event(NamedTuple):
    """One record, decoded. Times are nanoseconds of the machine's monotonic clock; `duration_ns` -1: still running."""

    start_ns: int
    duration_ns: int
    step: int
    microbatch: int
    kib: int
    stage: int
    op: str
    pipeline: int


def read_events(content: bytes) -> Iterator[Event]:
    """Events of one worker's file, up to the unused space. ValueError if the content is damaged."""
    whole = len(content) // RECORD_BYTES * RECORD_BYTES
    for start_ns, duration_ns, step, microbatch, kib, stage, op, pipeline in RECORD.iter_unpack(content[:whole]):
        if op == 0:
            return
        if op >= len(OPS):
            raise ValueError(f"record with op number {op}; highest known is {len(OPS) - 1}")
        yield Event(start_ns, duration_ns, step, microbatch, kib, stage, OPS[op], pipeline)
