"""One worker of a run, top to bottom: join, build the stage, loop over steps, save. Runs in a process of its own."""

import json
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from polyreme.errors import DivergedError, PolyremeError
from polyreme.lab import cgroups, network
from polyreme.runtime.executor import Executor
from polyreme.runtime.launch import Message, die_with_launcher
from polyreme.runtime.mesh import leave
from polyreme.runtime.transports.base import PeerLostError
from polyreme.training.assembly import Assembly, assemble
from polyreme.training.save import save_weights
from polyreme.training.settings import NO_STEP, WorkerSettings
from polyreme.training.weights import writings
from polyreme.units import MIB

LAB_ROOM_BYTES = 64 * MIB
"""What a process may take beyond its device's memory: message buffers, the allocator's slack."""


def worker_main(content: bytes, pipe: Connection, listener: socket.socket | None) -> None:
    """Entry of a worker process. Reports failures to the launcher and ends with their exit code."""
    die_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which stops all workers at one step
    settings = WorkerSettings.from_message(content)
    if settings.seat.namespace is not None:
        network.enter(settings.seat.namespace)  # before there are threads, which would stay behind
    _log_to(settings.folder / "logs" / f"rank-{settings.rank}.log")
    worker = Worker(settings, pipe)
    threading.Thread(target=worker.listen, daemon=True).start()
    code = 0
    try:
        worker.train(listener)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        traceback.print_exc()
        worker.report_failure(error)
        code = error.exit_code if isinstance(error, PolyremeError) else 4
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


class Worker:
    """State of one worker process."""

    def __init__(self, settings: WorkerSettings, pipe: Connection) -> None:
        self.settings = settings
        self.pipe = pipe
        self.executor: Executor | None = None
        self.step = NO_STEP
        self.last_step: float = math.inf
        self._holding = False
        self._turn = threading.Condition()
        self._writing = threading.Lock()

    def listen(self) -> None:
        """Hear the launcher: hold before the next step, then stop after the last one; end at once when it is gone."""
        try:
            while True:
                message = json.loads(self.pipe.recv_bytes())
                with self._turn:
                    self._holding = message["type"] == "hold"
                    if not self._holding:
                        self.last_step = message["last_step"]
                    step = self.step
                    self._turn.notify()
                if message["type"] == "hold":
                    self._tell({"type": "holding", "step": step})
        except (EOFError, OSError):
            os._exit(1)

    def train(self, listener: socket.socket | None) -> None:
        """Run all steps of the job."""
        torch.set_num_threads(1)
        settings = self.settings
        work = assemble(settings, listener)
        self.executor = work.executor
        if settings.seat.in_lab:
            free = work.memory.capacity_bytes - work.memory.held_bytes["weights"]
            cgroups.enter(settings.seat.groups, os.getpid(), int(free) + LAB_ROOM_BYTES)
        self._tell({"type": "ready"})
        for step in range(work.job.steps):
            if not self._may_begin(step):
                break
            self._one_step(work, step)
        work.recorder.close()
        if self.settings.save_weights:
            groups = {place: stage.layers.ranks.group for place, stage in work.stages.items()}
            planned, folder = writings(work.plan, work.model), self.settings.folder / "weights"
            save_weights(planned, self.settings.rank, work.parameters, groups, folder)
        memory = work.memory
        self._tell({"type": "done", "peak_bytes": memory.peak_bytes, "limit_bytes": memory.capacity_bytes})
        leave()

    def _may_begin(self, step: int) -> bool:
        """Whether a step is to be run; waits while the launcher finds out which step is the last."""
        with self._turn:
            self._turn.wait_for(lambda: not self._holding)
            if step > self.last_step:
                return False
            self.step = step
            return True

    def _one_step(self, work: Assembly, step: int) -> None:
        started_ns, cpu_before = time.monotonic_ns(), time.process_time()
        loss_sum, targets = work.run_step(step)
        update = work.update
        if not math.isfinite(loss_sum) or (update.diverged and work.holds_head):
            what = f"gradient norm of step {step} is {update.gradient_norm}"
            what = what if math.isfinite(loss_sum) else f"loss of step {step} is {loss_sum}"
            raise DivergedError(f"the {what}", fix="lower optimizer.learning_rate")
        cpu_s = time.process_time() - cpu_before
        span = {"start_ns": started_ns, "stop_ns": time.monotonic_ns(), "cpu_s": cpu_s}
        span["compute_cpu_s"] = work.executor.compute_cpu_s
        evaluated: Message = {}
        if work.evaluates_after(step):
            loss, counted = work.run_evaluation(step)
            evaluated = {"evaluation_loss_sum": loss, "evaluation_targets": counted}
        of_update = {
            "gradient_norm": update.gradient_norm if math.isfinite(update.gradient_norm) else None,
            "learning_rate": update.learning_rate,
        }
        message = {
            "type": "step",
            "step": step,
            "loss_sum": loss_sum,
            "targets": targets,
            **of_update,
            **evaluated,
            **span,
        }
        self._tell({**message, "free_ns": time.monotonic_ns()})

    def report_failure(self, error: BaseException) -> None:
        """Tell the launcher what failed and at which action."""
        action = self.executor.current if self.executor is not None else None
        message: Message = {
            "type": "failed",
            "peer_lost": isinstance(error, PeerLostError),
            "exception": f"{type(error).__name__}: {error}",
            "exit_code": error.exit_code if isinstance(error, PolyremeError) else 4,
            "step": max(self.step, 0),
            "action": str(action) if action is not None else None,
        }
        self._tell(message)

    def _tell(self, message: Message) -> None:
        with self._writing:
            self.pipe.send_bytes(json.dumps(message).encode())


def _log_to(path: Path) -> None:
    """Send everything that this process prints, native code included, to its own log."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
