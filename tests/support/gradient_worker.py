"""Workers for tests: one runs a real step and keeps the gradients in a file; one dies before it has joined."""

import json
import os
import signal
import socket
import traceback
from multiprocessing.connection import Connection

import torch
from safetensors.torch import save_file

from polyreme.drivers.base import MemoryLedger
from polyreme.models.optimizer import Updater
from polyreme.runtime.gradsync import GradientSync
from polyreme.runtime.launch import die_with_launcher
from polyreme.runtime.mesh import leave
from polyreme.specs.job import JobSpec
from polyreme.training.assembly import Parameters, assemble
from polyreme.training.settings import WorkerSettings
from polyreme.training.update import LossScale, StepUpdate


def gradient_main(content: bytes, pipe: Connection, listener: "socket.socket | None") -> None:
    die_with_launcher()
    settings = WorkerSettings.from_message(content)
    path = settings.folder / f"gradients-{settings.rank}.safetensors"

    class Keep(StepUpdate):
        """Saves the gradients in place of using them, and the norm beside them."""

        def step(self) -> None:
            parameters = self.sync.parameters
            held = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
            norm = torch.tensor([self.gradient_norm], dtype=torch.float64)
            save_file({"norm": norm, **{name: gradient.contiguous() for name, gradient in held.items()}}, path)

    def keep(
        job: JobSpec, sync: GradientSync, parameters: Parameters, memory: MemoryLedger, scale: LossScale
    ) -> StepUpdate:
        return Keep(sync, Updater(job.optimizer, parameters, memory), job.optimizer, job.steps, scale)

    try:
        torch.set_num_threads(1)
        work = assemble(settings, listener, keep)
        work.run_step(0)
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
