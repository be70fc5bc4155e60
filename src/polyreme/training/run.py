"""One run from start to end: the run folder, the workers, the metrics, and the culprit of a failure.

Runs in the launcher's process and imports no framework.
"""

import json
import os
import platform
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from polyreme import __version__
from polyreme.catalog.fleet import build_fleet
from polyreme.errors import (
    DivergedError,
    InputError,
    OutOfDeviceMemoryError,
    PolyremeError,
    WorkerLostError,
)
from polyreme.layout.instances import instances, stages_of
from polyreme.layout.requirements import required_features
from polyreme.runtime.faults import Fault
from polyreme.runtime.launch import Failure, Message, Workers, check_platform
from polyreme.specs.cluster import ClusterSpec
from polyreme.specs.fields import Feature, Precision
from polyreme.specs.io import save, to_data, write_atomically
from polyreme.specs.job import Batch, JobSpec
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Plan
from polyreme.specs.profile import ProfileSpec
from polyreme.specs.report import Report
from polyreme.telemetry.reading import read_event_log
from polyreme.training.corpus import MIN_VOCAB, Corpus, open_corpus
from polyreme.training.redact import redact
from polyreme.training.settings import WorkerSettings
from polyreme.training.watch import STALL_FLOOR_S, StallWatch
from polyreme.training.weights import INDEX_FILE, huggingface_config, weight_index

WORKER_MODULE = "polyreme.training.preload"
SUPPORTED = frozenset({Feature.DATA_PARALLEL, Feature.UNEQUAL_PIPELINES, Feature.UNEVEN_SHARE, Feature.TIED_EMBEDDING})
"""What the runtime executes beyond one pipeline of single-device stages."""
PRECISIONS = (Precision.FP32, Precision.FP64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a run is made from. `base` is the folder that data paths are relative to."""

    plan: Plan
    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    base: Path
    profile: ProfileSpec | None = None
    prediction: Report | None = None


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One finished step. `loss` is per token that counts; `step_time_s` from the end of the step before."""

    step: int
    loss: float
    step_time_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that ended well, or was stopped after a whole step."""

    run_dir: Path
    steps: tuple[StepMetrics, ...]
    interrupted: bool


def run(
    inputs: Inputs,
    run_dir: Path,
    on_step: Callable[[StepMetrics], None] = lambda _: None,
    *,
    fault: Fault | None = None,
    save_weights: bool = True,
    num_cores: int | None = None,
    stall_floor_s: float = STALL_FLOOR_S,
) -> RunResult:
    """Train by a plan and return when all workers have ended. The run folder is written in every case.

    WorkerLostError, OutOfDeviceMemoryError or DivergedError name the worker at fault; InputError if it cannot start.
    `stall_floor_s`: seconds that a worker may always go without moving, see `StallWatch`.
    """
    check_platform()
    check_runnable(inputs)
    corpus = open_corpus(inputs.job.data, inputs.base)
    _write_inputs(inputs, run_dir, corpus)
    settings = WorkerSettings(
        run_dir=str(run_dir.resolve()),
        data_base=str(inputs.base.resolve()),
        num_cores=num_cores or usable_cores(),
        save_weights=save_weights,
        fault=str(fault) if fault is not None else None,
    )
    run_ = _Run(inputs, run_dir, on_step)
    try:
        with Workers(_worker_main(), [settings.to_message()] * len(inputs.plan.workers), WORKER_MODULE) as workers:
            run_.follow(workers, stall_floor_s)
    except PolyremeError as error:
        run_.write_result("failed", error.exit_code, run_.failure)
        raise
    except BaseException:
        run_.write_result("interrupted", 130, None)
        raise
    if save_weights:
        _write_weight_index(inputs, run_dir)
    run_.write_memory()
    run_.write_result("interrupted" if run_.interrupted else "completed", 130 if run_.interrupted else 0, None)
    return RunResult(run_dir, tuple(run_.steps), run_.interrupted)


def check_runnable(inputs: Inputs) -> None:
    """InputError if plan, model and job are not for each other, or ask for what the runtime cannot do."""
    plan, model, job, problems = inputs.plan, inputs.model, inputs.job, []
    missing = [feature for feature in required_features(plan, model) if feature not in SUPPORTED]
    if missing:
        problems.append(f"the plan requires {', '.join(missing)}, which this runtime does not execute yet")
    if plan.num_layers != model.num_layers + 2:
        problems.append(f"the plan covers {plan.num_layers} layers, the model has {model.num_layers + 2}")
    if plan.batch != job.batch:
        problems.append(f"the plan is for a batch of {_batch_text(plan.batch)}, the job has {_batch_text(job.batch)}")
    if model.family is not ModelFamily.LLAMA or model.rope_scaling or model.attention_window:
        problems.append("only family llama without rope_scaling and attention_window can be trained yet")
    if model.vocab_size < MIN_VOCAB:
        problems.append(f"byte-level text needs vocab_size >= {MIN_VOCAB}, the model has {model.vocab_size}")
    precisions = {stage.precision for pipeline in plan.pipelines for stage in pipeline.stages} | {job.precision}
    if not precisions <= set(PRECISIONS):
        problems.append(f"precision {', '.join(sorted(precisions))} cannot run yet; fp32 and fp64 can")
    fleet = build_fleet(inputs.cluster)
    drivers = {fleet.device(worker).kind.driver for worker in plan.workers} - {"cpu", "emulated"}
    if drivers:
        problems.append(f"devices of driver {', '.join(sorted(drivers))} cannot run yet; cpu and emulated can")
    if problems:
        raise InputError.single("plan", "; ".join(problems), fix="plan, explain and simulate work for it")


def _batch_text(batch: Batch) -> str:
    return f"{batch.sequences} x {batch.tokens_per_sequence} tokens"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_run_dir(parent: Path, name: str) -> Path:
    """A run folder that does not exist yet: `<time>-<name>`."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{''.join(c if c.isalnum() or c in '-_' else '-' for c in name)}"
    for number in range(1, 1000):
        candidate = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError.single(str(parent), f"cannot be written: {error.strerror}", fix="use --runs") from None
        return candidate
    raise InputError.single(str(parent), f"holds a thousand runs called {stem}", fix="remove some")


class _Run:
    """What the launcher knows while a run goes on."""

    def __init__(self, inputs: Inputs, run_dir: Path, on_step: Callable[[StepMetrics], None]) -> None:
        self.inputs, self.run_dir, self.on_step = inputs, run_dir, on_step
        self.steps: list[StepMetrics] = []
        self.interrupted = False
        self.failure: dict[str, Any] | None = None
        self._pending: dict[int, dict[int, Message]] = defaultdict(dict)
        self._done: dict[int, Message] = {}
        self._holding: dict[int, int] = {}
        self._stop_told = False
        self._last_stop_ns = 0
        self._workers: Workers | None = None

    def follow(self, workers: Workers, stall_floor_s: float) -> None:
        """Listen to the workers until they have ended. Raises the error of the one at fault."""
        self._workers = workers
        content = {"launcher": os.getpid(), "workers": workers.process_ids}
        write_atomically(self.run_dir / "processes.json", json.dumps(content) + "\n")
        given = self.inputs
        before = signal.signal(signal.SIGINT, self._stop)
        try:
            with StallWatch(
                given.plan, given.model, given.job.steps, self.run_dir, workers.process_ids, stall_floor_s
            ) as watch:
                for heard in workers.messages(watch.look):
                    if isinstance(heard, Failure):
                        raise self._error(heard)
                    watch.heard(*heard)
                    self._take(*heard)
        finally:
            signal.signal(signal.SIGINT, before)

    def write_result(self, status: str, exit_code: int, failure: dict[str, Any] | None) -> None:
        """result.json: how the run ended."""
        content = {"status": status, "exit_code": exit_code, "steps": len(self.steps), "failure": failure}
        write_atomically(self.run_dir / "result.json", json.dumps(content, indent=1, sort_keys=True) + "\n")

    def write_memory(self) -> None:
        """memory.json: the most that each worker held, by part."""
        workers = [
            {"rank": rank, "peak_bytes": message["peak_bytes"], "limit_bytes": message["limit_bytes"]}
            for rank, message in sorted(self._done.items())
        ]
        write_atomically(self.run_dir / "memory.json", json.dumps({"workers": workers}, indent=1) + "\n")

    def _take(self, rank: int, message: Message) -> None:
        if message["type"] == "done":
            self._done[rank] = message
            self._end_hold()
        elif message["type"] == "holding":
            self._holding[rank] = message["step"]
            self._end_hold()
        elif message["type"] == "step":
            reports = self._pending[message["step"]]
            reports[rank] = message
            if len(reports) == len(self.inputs.plan.workers):
                self._finish_step(message["step"], self._pending.pop(message["step"]))

    def _finish_step(self, step: int, reports: dict[int, Message]) -> None:
        targets = reports[0]["targets"]
        loss = sum(reports[rank]["loss_sum"] for rank in sorted(reports)) / targets
        stop_ns = max(report["stop_ns"] for report in reports.values())
        start_ns = self._last_stop_ns or min(report["start_ns"] for report in reports.values())
        self._last_stop_ns = stop_ns
        metrics = StepMetrics(step, loss, (stop_ns - start_ns) / 1e9, targets)
        self.steps.append(metrics)
        line = {"step": step, "loss": loss, "step_time_s": metrics.step_time_s, "tokens": targets}
        with (self.run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "time_unix_s": time.time()}) + "\n")
        self.on_step(metrics)

    def _stop(self, *_: object) -> None:
        """Ctrl-C: let all workers stop after one and the same step; a second one ends them at once.

        Workers begin no further step until they have all said which one they are at: the latest of these is the last.
        Any other choice could be behind a worker already, which the others would then wait for in vain.
        """
        if self.interrupted or self._workers is None:
            raise KeyboardInterrupt
        self.interrupted = True
        self._workers.tell({"type": "hold"})

    def _end_hold(self) -> None:
        """Once every worker has answered, or has run all steps, say once which step is the last: the first or later."""
        at = self._holding | dict.fromkeys(self._done, self.inputs.job.steps - 1)
        if self._workers is None or self._stop_told or not self.interrupted or len(at) < len(self.inputs.plan.workers):
            return
        self._stop_told = True
        self._workers.tell({"type": "stop", "last_step": max(0, *at.values())})

    def _error(self, failure: Failure) -> PolyremeError:
        """The error that names rank, stage, device and action of a failure, and where its log is."""
        plan, rank, message = self.inputs.plan, failure.rank, failure.message or {}
        running = instances(plan)
        action, step = message.get("action"), message.get("step")
        last = read_event_log(self.run_dir).last_events().get(rank)
        if action is None and last is not None and last.duration_ns < 0:
            action = (
                f"{running[last.pipeline].name}.{last.stage}.{last.op}{last.microbatch}"
                if last.op in _STAGED
                else last.op
            )
            step = last.step
        stage = [f"{instance.name}.{index}" for instance, index in stages_of(plan, rank)]
        device = build_fleet(self.inputs.cluster).device(plan.workers[rank]).kind.name
        exception = message.get("exception") or _exit_text(failure.exit_status)
        log = self.run_dir / "logs" / f"rank-{rank}.log"
        self.failure = {
            "rank": rank,
            "worker": plan.workers[rank],
            "stage": ", ".join(stage),
            "device": device,
            "action": action,
            "step": step,
            "exception": exception,
            "log": str(log),
        }
        card = "\n".join(f"  {key:<10}{_indented(value)}" for key, value in self.failure.items() if value is not None)
        if "waits" in message:
            self.failure["waits"] = message["waits"]
        kinds: dict[int, type[PolyremeError]] = {5: OutOfDeviceMemoryError, 6: DivergedError}
        if message.get("exit_code") == InputError.exit_code:
            return InputError.single(f"rank {rank}", exception)
        return kinds.get(message.get("exit_code", 4), WorkerLostError)(
            f"rank {rank} failed and the run was ended\n{card}"
        )


_STAGED = ("F", "B", "SA", "RA", "SG", "RG")


def _indented(value: object) -> str:
    return str(value).replace("\n", "\n" + 12 * " ")


def _exit_text(status: int | None) -> str:
    if status is None or status >= 0:
        return f"the process ended with exit status {status}"
    return f"the process was ended by {signal.Signals(-status).name}"


def _worker_main() -> Any:
    """The worker's entry, by name: importing it here would load the framework into the launcher."""
    return _enter_worker


def _enter_worker(*arguments: Any) -> None:
    from polyreme.training.worker import worker_main  # noqa: PLC0415 - only in the worker's process

    worker_main(*arguments)


def _write_inputs(inputs: Inputs, run_dir: Path, corpus: Corpus) -> None:
    """Everything that the run is made from, secrets taken out, before anything starts."""
    for folder in ("logs", "events"):
        (run_dir / folder).mkdir(parents=True, exist_ok=True)
    config = redact(to_data(replace(inputs.job, model="model.json", cluster="cluster.json")))
    write_atomically(run_dir / "config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")
    save(run_dir / "model.json", inputs.model)
    save(run_dir / "cluster.json", inputs.cluster)
    save(run_dir / "plan.json", inputs.plan)
    if inputs.profile is not None:
        save(run_dir / "profile.json", inputs.profile)
    if inputs.prediction is not None:
        save(run_dir / "prediction.json", inputs.prediction)
    environment = {
        "polyreme": __version__,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "seed": inputs.job.seed,
        "data_digest": corpus.digest,
        "data_files": len(corpus.paths),
        "started_unix_s": time.time(),
        "command": redact(_command(sys.argv)),
    }
    write_atomically(run_dir / "environment.json", json.dumps(environment, indent=1, sort_keys=True) + "\n")


def _command(arguments: Sequence[str]) -> list[str]:
    return [Path(arguments[0]).name, *arguments[1:]] if arguments else []


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _write_weight_index(inputs: Inputs, run_dir: Path) -> None:
    index = weight_index(inputs.plan, inputs.model, inputs.job.precision)
    write_atomically(run_dir / "weights" / INDEX_FILE, json.dumps(index, indent=1, sort_keys=True) + "\n")
    config = huggingface_config(inputs.model, inputs.job.precision)
    write_atomically(run_dir / "weights" / "config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")
