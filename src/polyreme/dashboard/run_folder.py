"""A run folder as plain data, whatever state the run left it in: what is missing or damaged is named, never raised.

Written by the run half; `RunView` is all that the report page, the terminal summary and `--json` look at.
"""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from polyreme.errors import InputError
from polyreme.specs.cluster import ClusterSpec
from polyreme.specs.io import load_cluster, load_job, load_model, load_plan, load_report
from polyreme.specs.job import JobSpec
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan
from polyreme.specs.report import Report
from polyreme.telemetry.measured import Measured, measure
from polyreme.telemetry.reading import EventLog, read_event_log

T = TypeVar("T")
MARKS = ("plan.json", "environment.json", "config.json", "events")
"""A folder with any of these is a run folder."""
STATUSES = ("completed", "failed", "interrupted")
UNFINISHED = "unfinished"
_LOG_TAIL_BYTES = 2**14


class StepMetrics(NamedTuple):
    """One line of metrics.jsonl. A loss that is no finite number is NaN; `time_unix_s` is NaN where not given."""

    step: int
    loss: float
    step_time_s: float
    tokens: int
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Peak bytes of one worker by part, and its limit where one is set."""

    rank: int
    peak_bytes: Mapping[str, float]
    limit_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Root cause of a failed run, all as text, empty where not known. `log` is a name in `RunView.logs`, or empty."""

    rank: str
    worker: str
    stage: str
    device: str
    action: str
    step: str
    exception: str
    log: str
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run. None and empty where the folder has nothing readable; `problems` says why."""

    directory: Path
    status: str
    exit_code: int | None
    failure: Failure | None
    job: JobSpec | None
    model: ModelSpec | None
    cluster: ClusterSpec | None
    plan: Plan | None
    prediction: Report | None
    environment: Mapping[str, str]
    metrics: tuple[StepMetrics, ...]
    memory: Mapping[int, WorkerMemory]
    events: EventLog
    measured: Measured
    logs: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def run_id(self) -> str:
        """Name of the folder."""
        return self.directory.name


def is_run_folder(directory: Path) -> bool:
    """Whether the folder holds anything a run writes."""
    return any((directory / mark).exists() for mark in MARKS)


def load_run(directory: Path) -> RunView:
    """Read a run folder. InputError only if it is none at all."""
    directory = directory.resolve()
    if not is_run_folder(directory):
        what = "is no run folder" if directory.is_dir() else "does not exist" if not directory.exists() else "is a file"
        raise InputError.single(str(directory), what, fix="give a folder that a run wrote, such as runs/<id>")
    return _Loader(directory).load()


class _Loader:
    """Reads the parts one by one and keeps a sentence for each that is missing or damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.problems: list[str] = []

    def load(self) -> RunView:
        result = self._json("result.json", optional=True)
        events = read_event_log(self.directory)
        logs = self._logs()
        status = str(result.get("status", UNFINISHED))
        code = result.get("exit_code")
        view = RunView(
            directory=self.directory,
            status=status if status in STATUSES else UNFINISHED,
            exit_code=code if isinstance(code, int) else None,
            failure=self._failure(result.get("failure"), logs),
            job=self._spec("config.json", load_job),
            model=self._spec("model.json", load_model),
            cluster=self._spec("cluster.json", load_cluster),
            plan=self._spec("plan.json", load_plan),
            prediction=self._spec("prediction.json", load_report),
            environment={key: _setting(value) for key, value in self._json("environment.json").items()},
            metrics=tuple(self._metrics()),
            memory=self._memory(optional=status != "completed"),
            events=events,
            measured=measure(events),
            logs=logs,
            problems=(),
        )
        self.problems += events.faults
        if view.plan and view.prediction and view.prediction.plan != view.plan.digest:
            made_for = view.prediction.plan
            self.problems.append(f"prediction.json: was made for plan {made_for}, the run has {view.plan.digest}")
        return dataclasses.replace(view, problems=tuple(self.problems))

    def _spec(self, name: str, load: Callable[[Path], T]) -> T | None:
        try:
            return load(self.directory / name)
        except InputError as error:
            first = error.faults[0]
            more = f" (and {len(error.faults) - 1} more)" if len(error.faults) > 1 else ""
            path = f"{first.path}: " if first.path else ""
            self.problems.append(f"{name}: {path}{first.problem}{more}")
            return None

    def _json(self, name: str, *, optional: bool = False) -> Mapping[str, Any]:
        text = self._text(name, optional=optional)
        if text is None:
            return {}
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            self.problems.append(f"{name}: is not a JSON object")
            return {}
        return data

    def _text(self, name: str, *, optional: bool = False) -> str | None:
        path = self.directory / name
        try:
            return path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            if not optional:
                self.problems.append(f"{name}: does not exist")
        except OSError as error:
            self.problems.append(f"{name}: cannot be read: {error.strerror or error}")
        return None

    def _metrics(self) -> Iterator[StepMetrics]:
        """Lines that are whole; a torn last line is what a kill leaves and no problem."""
        lines = (self._text("metrics.jsonl") or "").split("\n")
        unreadable = 0
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            metrics = _step_metrics(line)
            if metrics is not None:
                yield metrics
            elif number < len(lines) - 1:
                unreadable += 1
        if unreadable:
            self.problems.append(f"metrics.jsonl: {unreadable} unreadable lines are left out")

    def _memory(self, *, optional: bool) -> dict[int, WorkerMemory]:
        found: dict[int, WorkerMemory] = {}
        workers = self._json("memory.json", optional=optional).get("workers", [])
        for entry in workers if isinstance(workers, list) else []:
            rank, parts = (entry.get("rank"), entry.get("peak_bytes")) if isinstance(entry, dict) else (None, None)
            if not isinstance(rank, int) or not isinstance(parts, dict):
                self.problems.append("memory.json: an entry without rank or peak_bytes is left out")
                continue
            sizes = {str(part): _number(size) for part, size in parts.items()}
            limit = _number(entry.get("limit_bytes"))
            known = {part: size for part, size in sizes.items() if size >= 0}
            found[rank] = WorkerMemory(rank, known, limit if limit > 0 else None)
        return found

    def _logs(self) -> tuple[str, ...]:
        try:
            names = [path.name for path in (self.directory / "logs").iterdir() if path.is_file()]
        except OSError:
            return ()
        return tuple(f"logs/{name}" for name in sorted(names, key=_by_number))

    def _failure(self, data: Any, logs: tuple[str, ...]) -> Failure | None:
        if not isinstance(data, dict):
            return None
        text = {key: _text(data.get(key)) for key in ("rank", "worker", "stage", "device", "action", "step")}
        name = Path(_text(data.get("log"))).name
        log = f"logs/{name}" if f"logs/{name}" in logs else ""
        return Failure(**text, exception=_text(data.get("exception")), log=log, log_tail=self._tail(log))

    def _tail(self, log: str) -> str:
        if not log:
            return ""
        try:
            with (self.directory / log).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _LOG_TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError as error:
            self.problems.append(f"{log}: cannot be read: {error.strerror or error}")
            return ""


def _step_metrics(line: str) -> StepMetrics | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("step"), int):
        return None
    tokens = data.get("tokens")
    return StepMetrics(
        data["step"],
        _number(data.get("loss")),
        _number(data.get("step_time_s")),
        tokens if isinstance(tokens, int) else 0,
        _number(data.get("time_unix_s")),
    )


def _by_number(name: str) -> list[tuple[int, str]]:
    """Order in which rank-2 comes before rank-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def _number(value: Any) -> float:
    """A finite float; NaN for anything else."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _setting(value: Any) -> str:
    """Text of a value of environment.json; a list of words, such as a command, as a shell would take it."""
    words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return shlex.join(value) if words else _text(value)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
