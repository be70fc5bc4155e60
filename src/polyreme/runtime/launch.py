"""Starts the workers of a run on this machine, listens to them, and ends all of them when one fails.

Workers are forked from a server process that has imported the run half once, so that starting one costs milliseconds.
Each has a pipe to the launcher that carries JSON lines. A worker ends by itself when that pipe closes: it never
outlives its launcher, however the launcher ended. This module imports no framework.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from polyreme.errors import InputError
from polyreme.runtime.addresses import LOOPBACK

Message = dict[str, Any]
WorkerMain = Callable[[bytes, Connection, "socket.socket | None"], None]

GRACE_S = 0.3
"""How long after the first failure others may still report theirs: the root cause is not always heard first."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """How one worker failed. `exit_status` is negative for a signal; `message` is None if it died without a word."""

    rank: int
    exit_status: int | None
    message: Message | None

    @property
    def is_secondary(self) -> bool:
        """Whether the worker only lost a peer, so that another one is the cause."""
        return self.message is not None and bool(self.message.get("peer_lost"))


def check_platform() -> None:
    """InputError where workers cannot run."""
    if sys.platform == "win32":
        raise InputError.single(
            "platform", "workers run on Linux and macOS; on Windows plan and simulate", fix="use WSL2"
        )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """The processes of one run. Use as a context: on leaving, none of them is alive."""

    def __init__(self, main: WorkerMain, settings: Sequence[Message], preload: str, address: str = LOOPBACK) -> None:
        check_platform()
        method = "forkserver" if sys.platform == "linux" else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload([preload])
        self._main = main
        self._settings = settings
        self._address = address
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> "Workers":
        with socket.socket() as listener:
            listener.bind((self._address, 0))
            listener.listen(4096)
            port = listener.getsockname()[1]
            for rank, setting in enumerate(self._settings):
                ours, theirs = self._context.Pipe()
                content = json.dumps({**setting, "rank": rank, "port": port}).encode()
                process = self._context.Process(
                    target=self._main, args=(content, theirs, listener if rank == 0 else None), name=f"rank-{rank}"
                )
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def process_ids(self) -> list[int]:
        """Process id of each rank."""
        return [process.pid for process in self._processes]

    def tell(self, message: Message) -> None:
        """Send a message to every worker that still listens."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send_bytes(json.dumps(message).encode())

    def messages(self, look: Callable[[], Failure | None] = lambda: None) -> Iterator[tuple[int, Message] | Failure]:
        """(rank, message) as they arrive, until all workers have ended well; or the root cause of a failure, last.

        `look` is called at least every half second and may find a failure that no worker can report itself.
        """
        running = {process.sentinel: rank for rank, process in enumerate(self._processes)}
        open_pipes = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        failures: list[Failure] = []
        deadline = float("inf")
        while running and time.monotonic() < deadline:
            ready = wait([*open_pipes, *running], max(0.0, min(_POLL_S, deadline - time.monotonic())))
            ended = [running.pop(sentinel) for sentinel in ready if isinstance(sentinel, int)]
            heard = {open_pipes[pipe] for pipe in ready if isinstance(pipe, Connection)} | set(ended)
            for rank in sorted(heard):
                for message in self._drain(rank, open_pipes):
                    if message["type"] == "failed":
                        failures.append(Failure(rank, None, message))
                    else:
                        yield rank, message
            failures += self._deaths(ended, failures)
            if not failures and (found := look()) is not None:
                failures.append(found)
            if failures:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        if failures:
            self.kill()
            yield root_cause(failures)

    def kill(self) -> None:
        """End every worker now and wait until it is gone."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def _drain(self, rank: int, open_pipes: dict[Connection, int]) -> Iterator[Message]:
        """Messages that wait in a worker's pipe; takes the pipe off `open_pipes` once its other end is closed."""
        pipe = self._pipes[rank]
        try:
            while pipe in open_pipes and pipe.poll():
                yield json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            del open_pipes[pipe]

    def _deaths(self, ended: Sequence[int], failures: Sequence[Failure]) -> list[Failure]:
        """Failures of processes that have ended badly without having reported why."""
        for rank in ended:
            self._processes[rank].join()
        spoken = {failure.rank for failure in failures}
        codes = {rank: self._processes[rank].exitcode for rank in ended if rank not in spoken}
        return [Failure(rank, code, None) for rank, code in codes.items() if code != 0]


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The first failure that is not merely the loss of a peer; the first of all if there is no other."""
    return next((failure for failure in failures if not failure.is_secondary), failures[0])


def die_with_launcher() -> None:
    """Linux: have the kernel end this worker when the process it was forked from is gone."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only here

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)
