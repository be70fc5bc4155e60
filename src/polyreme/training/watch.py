"""Watches the workers of a run from the launcher: reads where each is and says so when the run has stalled.

Between two looks the launcher does other things, and a whole run may be suspended (Ctrl-Z) and go on. Time is therefore
counted from the first look that found things as they are, and anew after a pause of the launcher itself.
"""

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from polyreme.errors import WorkerLostError
from polyreme.layout.instances import instances
from polyreme.layout.owners import buckets
from polyreme.runtime.launch import Failure, Message
from polyreme.runtime.stall_report import StallReport
from polyreme.runtime.stalls import Dependencies, RankState, find_stall
from polyreme.schedules.lower import lower
from polyreme.specs.events import RUNNING_NS, Event
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan
from polyreme.telemetry.tail import EventTail

STALL_FLOOR_S = 8.0
"""A rank may always go this long without moving: a busy machine, a slow disk, a page fault storm. The run then ends
within 10 s: up to 1.5 s pass until a stop is seen, and 0.3 s until it is reported."""
STALL_STEPS = 4.0
"""A rank may go this many step times without moving, so that a stall ends the run within 5."""
LOOK_S = 0.45
"""At least this long between two looks. Just below the launcher's own 0.5 s, so that each of its turns is a look."""
PAUSE_S = 3.0
"""A longer time between two looks means that the launcher itself did not run."""
_NS = 10**9


class StallWatch:
    """What the launcher knows about the progress of `process_ids`, one per rank. Use as a context."""

    def __init__(
        self, plan: Plan, model: ModelSpec, num_steps: int, run_dir: Path, process_ids: Sequence[int], floor_s: float
    ) -> None:
        self._plan, self._last_step, self._process_ids, self._floor_s = plan, num_steps - 1, process_ids, floor_s
        self._dependencies = Dependencies(plan, lower(plan, buckets(plan, model)))
        numbers = {instance.name: number for number, instance in enumerate(instances(plan))}
        self._positions = {
            rank: {(str(a.op), numbers.get(a.pipeline, 0), a.stage, a.microbatch): i for i, a in enumerate(actions)}
            for rank, actions in self._dependencies.lists.items()
        }
        self._tails = {rank: EventTail(run_dir / "events" / f"rank-{rank}.bin") for rank in self._positions}
        self._events: dict[int, Event | None] = {}
        self._went_ns: dict[int, int] = {}
        self._seen: dict[int, tuple[object, int]] = {}
        self._reported: dict[int, int] = {}
        self._holding: set[int] = set()
        self._done: set[int] = set()
        self._step_times_s: deque[float] = deque(maxlen=16 * len(process_ids))
        self._started_ns = self._looked_ns = time.monotonic_ns()

    def __enter__(self) -> "StallWatch":
        return self

    def __exit__(self, *_: object) -> None:
        for tail in self._tails.values():
            tail.close()

    @property
    def deadline_s(self) -> float:
        """Seconds after which a rank that waits for nobody and has not moved is overdue."""
        step_time_s = max(self._plan.predicted.step_time_s[1], median(self._step_times_s) if self._step_times_s else 0)
        return max(self._floor_s, STALL_STEPS * step_time_s)

    def heard(self, rank: int, message: Message) -> None:
        """A worker has said something: a step is whole, it will hold before the next, or it is done."""
        if message["type"] == "step":
            self._reported[rank] = message["step"]
            self._step_times_s.append((message["stop_ns"] - message["start_ns"]) / _NS)
        elif message["type"] == "holding":
            self._holding.add(rank)
        elif message["type"] == "done":
            self._done.add(rank)

    def look(self) -> Failure | None:
        """The failure of the rank at fault if the run has stalled. Does nothing if called again too soon."""
        now_ns = time.monotonic_ns()
        elapsed_s = (now_ns - self._looked_ns) / _NS
        if elapsed_s < LOOK_S:
            return None
        self._looked_ns = now_ns
        if elapsed_s > PAUSE_S:
            self._seen.clear()
        states = {rank: self._state(rank, now_ns) for rank in self._tails}
        waits = self._dependencies.waits(states)
        quiet_s = {}
        for rank, state in states.items():
            key = (state, waits[rank])
            if rank not in self._seen or self._seen[rank][0] != key:
                self._seen[rank] = key, now_ns
            quiet_s[rank] = (now_ns - self._seen[rank][1]) / _NS
        stall = find_stall(states, waits, quiet_s, self.deadline_s)
        if stall is None:
            return None
        return _failure(StallReport(stall, states, waits, self._dependencies.lists, self._plan.workers, now_ns))

    def _state(self, rank: int, now_ns: int) -> RankState:
        event = self._tails[rank].last()
        stopped_ns = self._stopped_since(rank, event, now_ns)
        is_stopped = stopped_ns is not None
        position = self._positions[rank].get(_key(event)) if event is not None else None
        if event is None or position is None:
            return RankState(0, 0, 0, stopped_ns or self._started_ns, is_stopped, is_watched=False)
        is_running = event.duration_ns == RUNNING_NS
        since_ns = stopped_ns or _since_ns(event)
        is_whole = self._reported.get(rank, -1) >= event.step
        may_rest = rank in self._holding or event.step == self._last_step
        is_watched = not (is_whole and may_rest) and rank not in self._done and not self._tails[rank].may_have_ended
        if is_whole:
            return RankState(event.step + 1, 0, 0, since_ns, is_stopped, is_watched)
        return RankState(event.step, position + 1, position + (not is_running), since_ns, is_stopped, is_watched)

    def _stopped_since(self, rank: int, event: Event | None, now_ns: int) -> int | None:
        """Since when a rank may be stopped by a signal; None if it is not. One that has moved is not asked again."""
        has_moved = self._events.get(rank) != event
        self._events[rank] = event
        if has_moved or rank in self._done or not is_stopped(self._process_ids[rank]):
            self._went_ns[rank] = _since_ns(event) if has_moved and event is not None else now_ns
            return None
        return self._went_ns.get(rank, self._started_ns)


def is_stopped(process_id: int) -> bool:
    """Whether a process is stopped, by a signal or by a debugger. False where the system does not say so."""
    try:
        content = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return False
    return content.rpartition(b")")[2][1:2] in (b"T", b"t")


def _since_ns(event: Event) -> int:
    """When the rank got to where the event leaves it: into the action, or to its end."""
    return event.start_ns + max(event.duration_ns, 0)


def _key(event: Event) -> tuple[str, int, int, int]:
    return event.op, event.pipeline, event.stage, event.microbatch


def _failure(report: StallReport) -> Failure:
    """The failure of the rank that is named first, in the form in which workers report theirs."""
    rank = report.stall.culprits[0]
    message: dict[str, Any] = {
        "type": "failed",
        "peer_lost": False,
        "exception": "stalled: " + "\n".join(report.lines()),
        "exit_code": WorkerLostError.exit_code,
        "step": report.states[rank].step,
        "action": report.place(rank),
        "waits": report.edges(),
    }
    return Failure(rank, None, message)
