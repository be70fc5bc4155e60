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
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import save_file

from polyreme.adapters.torch_stage import TorchStage
from polyreme.catalog.fleet import build_fleet
from polyreme.drivers.base import MemoryLedger
from polyreme.drivers.choose import make_driver
from polyreme.errors import DivergedError, PolyremeError
from polyreme.layout.instances import PipelineInstance, stages_of
from polyreme.layout.owners import buckets
from polyreme.models.build import StageLayers
from polyreme.models.dtypes import DTYPES
from polyreme.models.optimizer import Updater
from polyreme.runtime.executor import Executor, Place
from polyreme.runtime.faults import parse_fault
from polyreme.runtime.gradsync import reduce_bucket
from polyreme.runtime.launch import Message, die_with_launcher
from polyreme.runtime.mesh import join, leave, reduction_groups
from polyreme.runtime.transport import PeerLostError
from polyreme.runtime.wiring import share, wire
from polyreme.schedules.lower import lower
from polyreme.specs.io import load_cluster, load_job, load_model, load_plan
from polyreme.telemetry.recorder import EventRecorder
from polyreme.training.batches import StepBatch
from polyreme.training.corpus import open_corpus
from polyreme.training.settings import WorkerSettings
from polyreme.training.weights import shard_file


def worker_main(content: bytes, pipe: Connection, listener: socket.socket | None) -> None:
    """Entry of a worker process. Reports failures to the launcher and ends with their exit code."""
    die_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which stops all workers at one step
    settings = WorkerSettings(**json.loads(content))
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
        self.step = 0
        self.last_step: float = math.inf

    def listen(self) -> None:
        """Hear the launcher: stop after a step; end at once when it is gone."""
        try:
            while True:
                message = json.loads(self.pipe.recv_bytes())
                self.last_step = min(self.last_step, message["last_step"])
        except (EOFError, OSError):
            os._exit(1)

    def train(self, listener: socket.socket | None) -> None:
        """Run all steps of the job."""
        torch.set_num_threads(1)
        settings, rank, run_dir = self.settings, self.settings.rank, self.settings.folder
        plan, model = load_plan(run_dir / "plan.json"), load_model(run_dir / "model.json")
        job, cluster = load_job(run_dir / "config.json"), load_cluster(run_dir / "cluster.json")
        fleet = build_fleet(cluster)
        driver = make_driver(fleet.device(plan.workers[rank]), fleet, settings.num_cores)
        device = driver.probe()
        join(rank, len(plan.workers), settings.port, listener, device.backend)
        reductions = buckets(plan, model)
        groups = reduction_groups([bucket.owners for bucket in reductions])

        memory = MemoryLedger(
            f"{plan.workers[rank]} ({fleet.device(plan.workers[rank]).kind.name})", device.memory_bytes
        )
        dtype = DTYPES[job.precision]
        stages: dict[Place, TorchStage] = {}
        shares: dict[Place, tuple[PipelineInstance, int, int]] = {}
        for instance, index in stages_of(plan, rank):
            start, stop = instance.pipeline.stages[index].layers
            stages[instance.name, index] = TorchStage(StageLayers(model, start, stop, job.seed, dtype), memory)
            shares[instance.name, index] = (instance, *share(instance, index, rank))
        parameters = {name: parameter for stage in stages.values() for name, parameter in stage.state().items()}
        updater = Updater(job.optimizer, parameters, memory)
        recorder = EventRecorder(run_dir / "events" / f"rank-{rank}.bin")
        self.executor = Executor(
            rank,
            lower(plan, reductions)[rank],
            wire(plan, model, fleet, rank, stages, dtype),
            driver,
            recorder,
            lambda number: reduce_bucket(reductions[number], parameters, groups[reductions[number].owners]),
            updater.step,
            parse_fault(settings.fault) if settings.fault else None,
        )
        corpus = open_corpus(job.data, Path(settings.data_base))
        self._tell({"type": "ready"})

        sequences, num_tokens = plan.batch.sequences, plan.batch.tokens_per_sequence
        for step in range(job.steps):
            if step > self.last_step:
                break
            self.step = step
            started_ns = time.monotonic_ns()
            targets = corpus.count_targets(job.seed, step, sequences, num_tokens)
            for stage in stages.values():
                stage.loss_seed = 1.0 / targets
            loss_sum = self.executor.run_step(step, StepBatch(corpus, job.seed, step, num_tokens, shares))
            if not math.isfinite(loss_sum):
                raise DivergedError(f"the loss of step {step} is {loss_sum}", fix="lower optimizer.learning_rate")
            span = {"start_ns": started_ns, "stop_ns": time.monotonic_ns()}
            self._tell({"type": "step", "step": step, "loss_sum": loss_sum, "targets": targets, **span})
        recorder.close()
        if settings.save_weights:
            save_weights(parameters, run_dir / "weights" / shard_file(rank, len(plan.workers)))
        self._tell({"type": "done", "peak_bytes": memory.peak_bytes, "limit_bytes": memory.capacity_bytes})
        leave()

    def report_failure(self, error: BaseException) -> None:
        """Tell the launcher what failed and at which action."""
        action = self.executor.current if self.executor is not None else None
        message: Message = {
            "type": "failed",
            "peer_lost": isinstance(error, PeerLostError),
            "exception": f"{type(error).__name__}: {error}",
            "exit_code": error.exit_code if isinstance(error, PolyremeError) else 4,
            "step": self.step,
            "action": str(action) if action is not None else None,
        }
        self._tell(message)

    def _tell(self, message: Message) -> None:
        self.pipe.send_bytes(json.dumps(message).encode())


def save_weights(parameters: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write parameters under their global names as safetensors; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    save_file({name: parameter.detach().contiguous() for name, parameter in parameters.items()}, temporary)
    temporary.replace(path)


def _log_to(path: Path) -> None:
    """Send everything that this process prints, native code included, to its own log."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
