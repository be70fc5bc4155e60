"""What a run's events say about its steps: a representative step as a timeline, time per stage, busy share per rank.

The first step is left out wherever there are others: it pays for allocation and connection. All times are seconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyreme.specs.events import OP_NUMBERS, RUNNING_NS
from polyreme.telemetry.reading import EventLog, Records, decode

BUSY_OPS = ("F", "B", "I", "W", "STEP")
"""Ops in which a device computes. The rest moves bytes or waits: the bubble is the share outside BUSY_OPS."""

_NS = 1e-9
_NEVER = np.iinfo(np.int64).max
_UPDATE = OP_NUMBERS["STEP"]
_RECEIVES = (OP_NUMBERS["RA"], OP_NUMBERS["RG"])


class MeasuredSpan(NamedTuple):
    """One action of a step, seconds from the start of the step; not `ended`: cut off by the end of the run.

    A receive that a rank began before the step is counted from its start on.
    """

    rank: int
    op: str
    pipeline: int
    stage: int
    microbatch: int
    kib: int
    start_s: float
    stop_s: float
    ended: bool


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The timeline of one step. `complete`: every rank ended its update."""

    step: int
    complete: bool
    duration_s: float
    spans: tuple[MeasuredSpan, ...]


@dataclass(frozen=True, slots=True)
class StageMedian:
    """Median seconds of one microbatch on one stage; None where it has no ended action."""

    forward_s: float | None
    backward_s: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """All that the events tell. `step_times_s` holds complete steps; shares are medians over them, by rank.

    `timeline` is the complete step with the median time, `cut_off` a last step that not every rank ended.
    """

    step_times_s: Mapping[int, float]
    timeline: MeasuredStep | None
    cut_off: MeasuredStep | None
    stages: Mapping[tuple[int, int], StageMedian]
    busy_share: Mapping[int, float]

    @property
    def bubble_share(self) -> Mapping[int, float]:
        """Share of a step in which a rank does not compute."""
        return {rank: 1.0 - share for rank, share in self.busy_share.items()}

    @property
    def mean_bubble(self) -> float | None:
        """Mean bubble share of all ranks; None without a complete step."""
        shares = list(self.bubble_share.values())
        return sum(shares) / len(shares) if shares else None


class _Window(NamedTuple):
    """When a step began on any rank and ended on all, nanoseconds of the machine's clock.

    Ranks do not start a step together: one that is done early already waits for the next step's first message. So a
    step begins with the first action that is no receive.
    """

    start_ns: int
    stop_ns: int

    @property
    def duration_s(self) -> float:
        return (self.stop_ns - self.start_ns) * _NS


def measure(log: EventLog) -> Measured:
    """Measure a run. Works on what is there, also of a run that was cut off in its first step."""
    steps_only = {rank: table[table["op"] != OP_NUMBERS["EVAL"]] for rank, table in log.records.items()}
    records = {rank: table for rank, table in steps_only.items() if len(table)}
    windows = _windows(records)
    complete = _complete_steps(records)
    chosen = complete[1:] or complete
    times_s = {step: windows[step].duration_s for step in complete}
    timeline = cut_off = None
    if chosen:
        middle_s = _median([times_s[step] for step in chosen])
        shown = min(chosen, key=lambda step: (abs(times_s[step] - middle_s), step))
        timeline = _timeline(records, shown, windows[shown], complete=True)
    last = max(windows, default=-1)
    if windows and last not in times_s:
        cut_off = _timeline(records, last, windows[last], complete=False)
    stages, shares = _stage_medians(records, chosen), _busy_shares(records, windows, chosen)
    return Measured(times_s, timeline, cut_off, stages, shares)


def _windows(records: Mapping[int, Records]) -> dict[int, _Window]:
    windows: dict[int, _Window] = {}
    for table in records.values():
        steps, inverse = np.unique(table["step"], return_inverse=True)
        starts = np.full(len(steps), _NEVER)
        stops = np.zeros(len(steps), dtype=np.int64)
        begins = ~np.isin(table["op"], _RECEIVES)
        np.minimum.at(starts, inverse[begins], table["start_ns"][begins])
        np.maximum.at(stops, inverse, table["start_ns"] + np.maximum(table["duration_ns"], 0))
        for step, start, stop in zip(steps.tolist(), starts.tolist(), stops.tolist(), strict=True):
            known = windows.get(step, _Window(start, stop))
            windows[step] = _Window(min(known.start_ns, start), max(known.stop_ns, stop))
    return {step: window for step, window in windows.items() if window.start_ns != _NEVER}


def _complete_steps(records: Mapping[int, Records]) -> list[int]:
    """Steps in which every rank ended its update, ascending."""
    updated = [set(table["step"][(table["op"] == _UPDATE) & _ended(table)].tolist()) for table in records.values()]
    return sorted(set.intersection(*updated)) if updated else []


def _timeline(records: Mapping[int, Records], step: int, window: _Window, *, complete: bool) -> MeasuredStep:
    spans = sorted(
        (span for rank, table in records.items() for span in _spans(rank, table[table["step"] == step], window)),
        key=lambda span: (span.rank, span.start_s),
    )
    return MeasuredStep(step, complete, window.duration_s, tuple(spans))


def _spans(rank: int, table: Records, window: _Window) -> Iterator[MeasuredSpan]:
    for record in table:
        event = decode(record)
        ended = event.duration_ns != RUNNING_NS
        stop_ns = event.start_ns + event.duration_ns if ended else window.stop_ns
        yield MeasuredSpan(
            rank,
            event.op,
            event.pipeline,
            event.stage,
            event.microbatch,
            event.kib,
            max(0, event.start_ns - window.start_ns) * _NS,
            max(0, stop_ns - window.start_ns) * _NS,
            ended,
        )


def _stage_medians(records: Mapping[int, Records], steps: list[int]) -> dict[tuple[int, int], StageMedian]:
    found: dict[tuple[int, int], dict[str, list[npt.NDArray[np.int64]]]] = {}
    for table in records.values():
        counted = table[np.isin(table["step"], steps) & _ended(table)] if steps else table[_ended(table)]
        for op in "FBIW":
            of_op = counted[counted["op"] == OP_NUMBERS[op]]
            keys = of_op["pipeline"].astype(np.int64) << 16 | of_op["stage"]
            for key in np.unique(keys).tolist():
                times = found.setdefault((key >> 16, key & 0xFFFF), {op: [] for op in "FBIW"})[op]
                times.append(of_op["duration_ns"][keys == key])
    return {key: _stage_median(times) for key, times in sorted(found.items())}


def _stage_median(times: Mapping[str, list[npt.NDArray[np.int64]]]) -> StageMedian:
    """Medians of a stage's forward and backward; a backward in two halves takes the time of both."""
    medians = {op: float(np.median(np.concatenate(found))) * _NS if found else None for op, found in times.items()}
    halves = (medians["I"], medians["W"])
    split = None if halves[0] is None or halves[1] is None else halves[0] + halves[1]
    num_whole, num_split = (sum(map(len, times[op])) for op in "BI")
    return StageMedian(medians["F"], medians["B"] if split is None or num_whole > num_split else split)


def _busy_shares(records: Mapping[int, Records], windows: Mapping[int, _Window], steps: list[int]) -> dict[int, float]:
    shares: dict[int, float] = {}
    for rank, table in sorted(records.items()):
        busy = table[np.isin(table["op"], [OP_NUMBERS[op] for op in BUSY_OPS]) & _ended(table)]
        numbers, inverse = np.unique(busy["step"], return_inverse=True)
        busy_s = dict(zip(numbers.tolist(), np.bincount(inverse, busy["duration_ns"] * _NS).tolist(), strict=True))
        of_steps = [busy_s[step] / windows[step].duration_s for step in steps if windows[step].duration_s > 0]
        if of_steps:
            shares[rank] = min(1.0, _median(of_steps))
    return shares


def _ended(table: Records) -> npt.NDArray[np.bool_]:
    ended: npt.NDArray[np.bool_] = table["duration_ns"] != RUNNING_NS
    return ended


def _median(values: list[float]) -> float:
    return float(np.median(values))
