"""A worker for tests that joins, saves its weights in bands of a given size, and tells what memory that took."""

import json
import socket
from multiprocessing.connection import Connection
from pathlib import Path

from gradient_worker import end_with

from polyreme.training.assembly import assemble
from polyreme.training.save import save_weights
from polyreme.training.settings import WorkerSettings
from polyreme.training.weights import writings

BAND_FILE = "band_bytes"


def saving_main(content: bytes, pipe: Connection, listener: "socket.socket | None") -> None:
    """No step at all. Bytes of memory go to `memory-<rank>.json`."""
    settings = WorkerSettings.from_message(content)

    def work() -> None:
        before = _status_bytes("VmRSS")
        _forget_peak()
        made = assemble(settings, listener)
        loading = _status_bytes("VmHWM") - before
        before = _status_bytes("VmRSS")
        _forget_peak()
        groups = {place: stage.layers.ranks.group for place, stage in made.stages.items()}
        band_bytes = int((settings.folder.parent / BAND_FILE).read_text())
        planned, folder = writings(made.plan, made.model), settings.folder / "weights"
        save_weights(planned, settings.rank, made.parameters, groups, folder, band_bytes)
        saving = _status_bytes("VmHWM") - before
        own = sum(one.numel() * one.element_size() for one in made.parameters.values())
        largest = max(one.numel() * one.element_size() for one in made.parameters.values())
        content = {"loading": loading, "saving": saving, "own": own, "largest": largest}
        (settings.folder / f"memory-{settings.rank}.json").write_text(json.dumps(content))

    end_with(work, pipe)


def _status_bytes(key: str) -> int:
    """A memory figure of this process: VmRSS now, VmHWM its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
