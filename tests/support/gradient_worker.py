"""Workers for tests: they keep gradients of a step, or their weights after all steps, in a file; one dies early."""

import json
import os
import signal
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import save_file

from polyreme.drivers.base import MemoryLedger
from polyreme.models.optimizer import Updater
from polyreme.runtime.gradsync import GradientSync
from polyreme.runtime.launch import Failure, WorkerMain, Workers, die_with_launcher
from polyreme.runtime.mesh import leave
from polyreme.specs.io import save
from polyreme.specs.job import JobSpec
from polyreme.training.assembly import Parameters, assemble
from polyreme.training.runnable import Inputs
from polyreme.training.settings import WorkerSettings
from polyreme.training.update import LossScale, StepUpdate


def run_workers(given: Inputs, run_dir: Path, main: WorkerMain) -> None:
    """Run `main` as the workers of a run until all have ended well."""
    run_dir.mkdir()
    specs = {"plan": given.plan, "model": given.model, "config": given.job, "cluster": given.cluster}
    for name, value in specs.items():
        save(run_dir / f"{name}.json", value)
    base = None if given.code_base is None else str(given.code_base.resolve())
    settings = WorkerSettings(run_dir=str(run_dir), data_base=str(given.base.resolve()), num_cores=2, code_base=base)
    messages = [settings.to_message() for _ in given.plan.workers]
    with Workers(main, messages, "polyreme.training.preload") as workers:
        for heard in workers.messages():
            assert not isinstance(heard, Failure), json.dumps(heard.message)


def gradient_main(content: bytes, pipe: Connection, listener: "socket.socket | None") -> None:
    """One step, its gradients kept."""
    settings = WorkerSettings.from_message(content)
    path = settings.folder / f"gradients-{settings.rank}.safetensors"

    class Keep(StepUpdate):
        """Saves the gradients in place of using them, and the norm beside them."""

        def step(self) -> None:
            parameters = self.sync.parameters
            unscaled = {name: one.grad / self.scale.value for name, one in parameters.items() if one.grad is not None}
            norm = torch.tensor([self.gradient_norm], dtype=torch.float64)
            save_file({"norm": norm, **{name: gradient.contiguous() for name, gradient in unscaled.items()}}, path)

    def keep(
        job: JobSpec, sync: GradientSync, parameters: Parameters, memory: MemoryLedger, scale: LossScale
    ) -> StepUpdate:
        return Keep(sync, Updater(job.optimizer, parameters, memory), job.optimizer, job.steps, scale)

    def work() -> None:
        assemble(settings, listener, keep).run_step(0)

    end_with(work, pipe)


def training_main(content: bytes, pipe: Connection, listener: "socket.socket | None") -> None:
    """All steps; what this rank holds in the end is kept."""
    settings = WorkerSettings.from_message(content)

    def work() -> None:
        made = assemble(settings, listener)
        for step in range(made.job.steps):
            made.run_step(step)
        held = {name: parameter.detach().contiguous() for name, parameter in made.parameters.items()}
        save_file(held, settings.folder / f"held-{settings.rank}.safetensors")

    end_with(work, pipe)


def end_with(work: Callable[[], None], pipe: Connection) -> None:
    """Run the last thing that this process does."""
    die_with_launcher()
    try:
        torch.set_num_threads(1)
        work()
        leave()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test must see it
        message = {"type": "failed", "exception": "".join(traceback.format_exception(error))}
        pipe.send_bytes(json.dumps(message).encode())
        os._exit(4)
    os._exit(0)


def dying_main(content: bytes, pipe: Connection, listener: "socket.socket | None") -> None:
    """Rank 1 is killed before it has joined; the others wait for it at the rendezvous."""
    if json.loads(content)["rank"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    gradient_main(content, pipe, listener)
