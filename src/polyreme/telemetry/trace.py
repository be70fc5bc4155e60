"""Writes timelines as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", Google, the JSON object form: complete events (ph X), times in microseconds. A group of
lanes is shown as one process, a lane as one thread of it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyreme.specs.io import atomic_file

TraceSpan = tuple[int, str, str, float, float]
"""(rank, name, category, start, stop), seconds."""

_US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class TraceGroup:
    """Lanes shown together under one heading: lane names by rank, and their spans in any order."""

    name: str
    lanes: Mapping[int, str]
    spans: Iterable[TraceSpan]


def write_trace(path: Path, lanes: Mapping[int, str], spans: Iterable[TraceSpan]) -> None:
    """Write one group of lanes. Errors as `write_trace_groups`."""
    write_trace_groups(path, [TraceGroup("polyreme", lanes, spans)])


def write_trace_groups(path: Path, groups: Iterable[TraceGroup]) -> None:
    """Write all groups, one above the other; the old file stays whole until the new one is.

    InputError if `path` cannot be written; ValueError for a time that is not finite or a span that ends before it
    starts.
    """
    with atomic_file(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        separator = "\n"
        for number, group in enumerate(groups, start=1):
            for event in _events(number, group):
                file.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False))
                separator = ",\n"
        file.write("\n]}\n")


def _events(process: int, group: TraceGroup) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", process, 0, {"name": group.name})
    yield _metadata("process_sort_index", process, 0, {"sort_index": process})
    for rank, lane in sorted(group.lanes.items()):
        yield _metadata("thread_name", process, rank, {"name": lane})
        yield _metadata("thread_sort_index", process, rank, {"sort_index": rank})
    for rank, name, category, start_s, stop_s in group.spans:
        if not (math.isfinite(start_s) and math.isfinite(stop_s) and start_s <= stop_s):
            raise ValueError(f"span {name} of rank {rank} runs from {start_s} to {stop_s} s")
        yield {
            "name": name,
            "cat": category,
            "ph": "X",
            "pid": process,
            "tid": rank,
            "ts": round(start_s * _US_PER_S, 3),
            "dur": round((stop_s - start_s) * _US_PER_S, 3),
        }


def _metadata(name: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments}
