"""Device groups: a share of a core, and a limit of memory, for the processes inside. cgroup v1 or v2.

The quota's period is 10 ms where the share allows it: over 100 ms windows a worker's share then varies by about 5 %, a
third of what it does with the usual 100 ms.
"""

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 10_000
LEAST_QUOTA_US = 1_000
"""The kernel accepts no shorter quota: a device below a tenth of a core has a longer period instead."""
PREFIX = "polyreme-"
_REMOVAL_TRIES = 50


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups are made: one folder for both controllers in v2, one each in v1."""

    cpu: Path
    memory: Path
    version: int


def find_hierarchies(mounts: str) -> Hierarchies | None:
    """The CPU and memory hierarchies of a /proc/mounts; None if one of them is missing. v1 wins where both exist."""
    v1: dict[str, Path] = {}
    unified = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        place, kind, options = Path(fields[1]), fields[2], fields[3].split(",")
        if kind == "cgroup":
            v1.update({name: place for name in ("cpu", "memory") if name in options})
        elif kind == "cgroup2":
            unified = place
    if len(v1) == 2:
        return Hierarchies(v1["cpu"], v1["memory"], 1)
    return Hierarchies(unified, unified, 2) if unified is not None else None


def quota(core_fraction: float) -> tuple[int, int]:
    """(quota, period) in microseconds of a share of one core."""
    quota_us = round(PERIOD_US * core_fraction)
    if quota_us >= LEAST_QUOTA_US:
        return quota_us, PERIOD_US
    return LEAST_QUOTA_US, round(LEAST_QUOTA_US / core_fraction)


class DeviceGroups:
    """The groups of one lab, under one parent whose processes the kernel prefers to all others."""

    def __init__(self, hierarchies: Hierarchies, name: str) -> None:
        self.hierarchies = hierarchies
        self.parents = list(dict.fromkeys((hierarchies.cpu / name, hierarchies.memory / name)))

    def make_parent(self) -> None:
        """Make the parent groups. OSError if the machine does not allow it."""
        for parent in self.parents:
            parent.mkdir()
        if self.hierarchies.version == 1:
            (self.parents[0] / "cpu.shares").write_text("16384", encoding="ascii")
            return
        controllers = "+cpu +memory"
        (self.hierarchies.cpu / "cgroup.subtree_control").write_text(controllers, encoding="ascii")
        (self.parents[0] / "cpu.weight").write_text("10000", encoding="ascii")
        (self.parents[0] / "cgroup.subtree_control").write_text(controllers, encoding="ascii")

    def make(self, name: str, core_fraction: float) -> list[Path]:
        """Make one device's groups with its CPU quota; returns their folders, that of the memory last."""
        quota_us, period_us = quota(core_fraction)
        folders = [parent / name for parent in self.parents]
        for folder in folders:
            folder.mkdir()
        if self.hierarchies.version == 1:
            (folders[0] / "cpu.cfs_period_us").write_text(str(period_us), encoding="ascii")
            (folders[0] / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
        else:
            (folders[0] / "cpu.max").write_text(f"{quota_us} {period_us}", encoding="ascii")
        return folders

    def remove(self) -> None:
        """Remove all groups. Their processes must have ended; the kernel may need a moment to notice."""
        for parent in self.parents:
            if parent.is_dir():
                for folder in [*(child for child in parent.iterdir() if child.is_dir()), parent]:
                    _remove(folder)


def enter(folders: Iterable[str], process_id: int, memory_bytes: int) -> None:
    """Put a process with all its threads into a device's groups; it may take `memory_bytes` more than it has now."""
    places = [Path(folder) for folder in folders]
    limit = places[-1] / "memory.limit_in_bytes"
    (limit if limit.exists() else places[-1] / "memory.max").write_text(str(memory_bytes), encoding="ascii")
    for place in places:
        (place / "cgroup.procs").write_text(str(process_id), encoding="ascii")


def num_killed(folder: Path) -> int:
    """How many processes of a device's memory group the kernel has killed because the limit was reached."""
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text(encoding="ascii").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


def _remove(folder: Path) -> None:
    for _ in range(_REMOVAL_TRIES):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
