"""One run from start to end: the run folder, the workers, the metrics, and the culprit of a failure.

Runs in the launcher's process and imports no framework.
"""

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from polyreme.catalog.fleet import build_fleet
from polyreme.errors import (
    DivergedError,
    InputError,
    OutOfDeviceMemoryError,
    PolyremeError,
    WorkerLostError,
)
from polyreme.lab.lab import Lab
from polyreme.layout.instances import instances, stages_of
from polyreme.runtime.addresses import Seat
from polyreme.runtime.faults import Fault
from polyreme.runtime.launch import Failure, Message, Workers, check_platform, usable_cores
from polyreme.schedules.action import recorded_action
from polyreme.specs.io import write_atomically
from polyreme.telemetry.reading import read_event_log
from polyreme.training.data import open_data
from polyreme.training.run_dir import write_inputs, write_weight_index
from polyreme.training.runnable import Inputs, check_runnable
from polyreme.training.settings import WorkerSettings
from polyreme.training.watch import STALL_FLOOR_S, StallWatch

WORKER_MODULE = "polyreme.training.preload"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One finished step. `loss` is per token that counts; `step_time_s` from the end of the step before or of
    the evaluation after it.

    `gradient_norm` is that of all gradients before clipping; None where the loss scale was too large for the step.
    `cpu_s` is what all workers spent on the host's processors, `compute_cpu_s` the part of it inside their layers.
    """

    step: int
    loss: float
    step_time_s: float
    tokens: int
    gradient_norm: float | None
    learning_rate: float
    evaluation_loss: float | None
    cpu_s: float
    compute_cpu_s: float


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
    in_lab: bool = False,
    stall_floor_s: float = STALL_FLOOR_S,
) -> RunResult:
    """Train by a plan and return when all workers have ended. The run folder is written in every case.

    `in_lab` makes the kernel limit each device and link; see `lab.why_not` for where that is possible.

    WorkerLostError, OutOfDeviceMemoryError or DivergedError name the worker at fault; InputError if it cannot start.
    `stall_floor_s`: seconds that a worker may always go without moving, see `StallWatch`.
    """
    check_platform()
    check_runnable(inputs)
    data = open_data(inputs.job, inputs.base.resolve(), inputs.model.vocab_size)
    write_inputs(inputs, run_dir, data)
    settings = WorkerSettings(
        run_dir=str(run_dir.resolve()),
        data_base=str(inputs.base.resolve()),
        num_cores=num_cores or usable_cores(),
        save_weights=save_weights,
        fault=str(fault) if fault is not None else None,
        data_inventory=data.inventory,
        code_base=str(inputs.code_base.resolve()) if inputs.code_base is not None else None,
    )
    run_ = _Run(inputs, run_dir, on_step)
    names = inputs.plan.workers
    try:
        with Lab(build_fleet(inputs.cluster), names, settings.num_cores) if in_lab else nullcontext() as lab:
            seats = lab.seats if lab is not None else [Seat()] * len(names)
            messages = [replace(settings, seat=seat).to_message() for seat in seats]
            with Workers(_worker_main(), messages, WORKER_MODULE, seats[0].address) as workers:
                run_.follow(workers, stall_floor_s, lab)
    except PolyremeError as error:
        run_.write_result("failed", error.exit_code, run_.failure)
        raise
    except BaseException:
        run_.write_result("interrupted", 130, None)
        raise
    if save_weights:
        write_weight_index(inputs, run_dir)
    run_.write_memory()
    run_.write_result("interrupted" if run_.interrupted else "completed", 130 if run_.interrupted else 0, None)
    return RunResult(run_dir, tuple(run_.steps), run_.interrupted)


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
        self._lab: Lab | None = None

    def follow(self, workers: Workers, stall_floor_s: float, lab: Lab | None) -> None:
        """Listen to the workers until they have ended. Raises the error of the one at fault."""
        self._workers, self._lab = workers, lab
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
        self._last_stop_ns = max(report["free_ns"] for report in reports.values())
        of_update = (reports[0]["gradient_norm"], reports[0]["learning_rate"])
        evaluation_loss = None
        if "evaluation_targets" in reports[0]:
            losses = sum(reports[rank]["evaluation_loss_sum"] for rank in sorted(reports))
            evaluation_loss = losses / reports[0]["evaluation_targets"]
        cpu_s, compute_cpu_s = (sum(report[key] for report in reports.values()) for key in ("cpu_s", "compute_cpu_s"))
        metrics = StepMetrics(
            step, loss, (stop_ns - start_ns) / 1e9, targets, *of_update, evaluation_loss, cpu_s, compute_cpu_s
        )
        self.steps.append(metrics)
        line = asdict(metrics)
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
        action, step = message.get("action"), message.get("step")
        last = read_event_log(self.run_dir).last_events().get(rank)
        if action is None and last is not None and last.duration_ns < 0:
            action = str(recorded_action(last, [instance.name for instance in instances(plan)]))
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
        if self._lab is not None and failure.exit_status == -signal.SIGKILL and self._lab.out_of_memory(rank):
            return OutOfDeviceMemoryError(f"the kernel ended rank {rank}: its device's memory was full\n{card}")
        if message.get("exit_code") == InputError.exit_code:
            return InputError.single(f"rank {rank}", exception.partition("\n")[2].strip() or exception)
        return kinds.get(message.get("exit_code", 4), WorkerLostError)(
            f"rank {rank} failed and the run was ended\n{card}"
        )


def _indented(value: object) -> str:
    return str(value).replace("\n", "\n" + 12 * " ")


def _exit_text(status: int | None) -> str:
    if status is None or status >= 0:
        return f"the process ended with exit status {status}"
    mapped = " (a file that is mapped into memory was cut short)" if -status == signal.SIGBUS else ""
    return f"the process was ended by {signal.Signals(-status).name}{mapped}"


def _worker_main() -> Any:
    """The worker's entry, by name: importing it here would load the framework into the launcher."""
    return _enter_worker


def _enter_worker(*arguments: Any) -> None:
    from polyreme.training.worker import worker_main  # noqa: PLC0415 - only in the worker's process

    worker_main(*arguments)
