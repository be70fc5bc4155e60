"""Reads the event files of a run folder back, whatever state they are in: what is readable, and what is wrong.

One file becomes one array of records; `Event` objects are made only where somebody looks at single events.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyreme.specs.events import OPS, RECORD_BYTES, RUNNING_NS, Event

RECORD_TYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("step", "<u4"),
        ("microbatch", "<u4"),
        ("kib", "<u4"),
        ("stage", "<u2"),
        ("op", "u1"),
        ("pipeline", "u1"),
    ]
)
assert RECORD_TYPE.itemsize == RECORD_BYTES

Records = npt.NDArray[np.void]
"""Records of one worker, in the order written."""

_FILE_NAME = re.compile(r"rank-(\d{1,7})\.bin")


@dataclass(frozen=True, slots=True)
class EventLog:
    """Records by rank, and a sentence for everything that could not be read."""

    records: Mapping[int, Records]
    faults: tuple[str, ...]

    @property
    def num_events(self) -> int:
        """Records of all ranks."""
        return sum(len(records) for records in self.records.values())

    def events(self, rank: int) -> Iterator[Event]:
        """Events of one rank in the order written; none if the rank has no file."""
        for record in self.records.get(rank, ()):
            yield decode(record)

    def last_events(self) -> dict[int, Event]:
        """What each rank did last: `duration_ns` -1 if it never ended it."""
        return {rank: decode(records[-1]) for rank, records in sorted(self.records.items()) if len(records)}


def decode(record: Any) -> Event:
    """The event that one record of `Records` holds."""
    start_ns, duration_ns, step, microbatch, kib, stage, op, pipeline = record.item()
    return Event(start_ns, duration_ns, step, microbatch, kib, stage, OPS[op], pipeline)


def read_event_log(run_dir: Path) -> EventLog:
    """All events of a run folder. Never raises for missing, torn or damaged files: names them in `faults`."""
    folder = run_dir / "events"
    records: dict[int, Records] = {}
    faults: list[str] = []
    try:
        files = {int(match[1]): path for path in folder.iterdir() if (match := _FILE_NAME.fullmatch(path.name))}
    except OSError as error:
        return EventLog({}, (f"events/ cannot be read: {error.strerror or error}",))
    for rank, path in sorted(files.items()):
        try:
            content = path.read_bytes()
        except OSError as error:
            faults.append(f"events/{path.name} cannot be read: {error.strerror or error}")
            continue
        records[rank], problem = parse_records(content)
        if problem:
            faults.append(f"events/{path.name}: {problem}")
    if not files:
        faults.append("events/ holds no file rank-<r>.bin")
    return EventLog(records, tuple(faults))


def parse_records(content: bytes) -> tuple[Records, str | None]:
    """Records up to the unused space or the first damaged one, and what is wrong with the rest."""
    whole = len(content) // RECORD_BYTES
    table = np.frombuffer(content, dtype=RECORD_TYPE, count=whole)
    invalid = (
        (table["op"] == 0)
        | (table["op"] >= len(OPS))
        | (table["start_ns"] < 0)
        | (table["duration_ns"] < RUNNING_NS)
        | (table["duration_ns"] > np.iinfo(np.int64).max - np.maximum(table["start_ns"], 0))
    )
    first = int(np.argmax(invalid)) if invalid.any() else whole
    used = table[:first]
    if np.frombuffer(content, dtype="u1", offset=first * RECORD_BYTES).any():
        if first < whole:
            return used, f"record {first} is damaged; {whole - first} of {whole} records are left out"
        return used, f"ends in the middle of record {whole}"
    return used, None
