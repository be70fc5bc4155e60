"""One lab from start to end: made for a plan's workers, removed however the run ends."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from polyreme.catalog.fleet import Fleet
from polyreme.drivers.choose import emulated_fractions
from polyreme.lab import cgroups, network
from polyreme.lab.cgroups import DeviceGroups, find_hierarchies
from polyreme.lab.network import INTERFACE, Network
from polyreme.runtime.addresses import Seat

_TAG = re.compile(r"(pr(\d+))[bnv]\d*")
_GROUP = re.compile(rf"{cgroups.PREFIX}(\d+)")


def why_not() -> str | None:
    """Why there can be no lab here; None if there can."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root"
    if missing := network.missing_tools():
        return f"{' and '.join(missing)} not found; install iproute2"
    if find_hierarchies(_mounts()) is None:
        return "no cgroup hierarchy with cpu and memory is mounted"
    return None


class Lab:
    """Namespaces and groups for `workers`. Use as a context; `seats` says where each rank sits."""

    def __init__(self, fleet: Fleet, workers: Sequence[str], num_cores: int) -> None:
        hierarchies = find_hierarchies(_mounts())
        assert hierarchies is not None, "asked for a lab where there can be none"
        devices = [fleet.device(worker) for worker in workers]
        self.nodes = sorted({device.node for device in devices})
        self.devices = devices
        self.fractions = emulated_fractions(fleet, num_cores)
        self.rates = {
            (self.nodes.index(one.node), self.nodes.index(other.node)): link.bandwidth_bytes_per_s
            for one in devices
            for other in devices
            if one.node != other.node and (link := fleet.link(one, other)) is not None
        }
        self.groups = DeviceGroups(hierarchies, f"{cgroups.PREFIX}{os.getpid()}")
        self.network: Network | None = None
        self.seats: list[Seat] = []

    def __enter__(self) -> "Lab":
        remove_stale()
        self.network = Network(f"pr{os.getpid()}", network.free_subnet(os.getpid() % 256), len(self.nodes))
        try:
            network.run_commands(network.build_commands(self.network, self.rates))
            self.groups.make_parent()
            for rank, device in enumerate(self.devices):
                fraction = self.fractions.get(device.kind.name, 1.0)
                folders = self.groups.make(f"rank-{rank}", fraction)
                self.seats.append(
                    Seat(
                        address=self.network.address,
                        interface=INTERFACE,
                        namespace=self.network.namespace(self.nodes.index(device.node)),
                        groups=tuple(map(str, folders)),
                    )
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything that the lab made."""
        if self.network is not None:
            network.run_commands(network.remove_commands(self.network), check=False)
        self.groups.remove()

    def out_of_memory(self, rank: int) -> bool:
        """Whether the kernel killed the rank's process because the device's memory was full."""
        return cgroups.num_killed(Path(self.seats[rank].groups[-1])) > 0


def remove_stale() -> None:
    """Remove what labs left whose launcher was killed. Names carry the launcher's process id."""
    for name in [*network.namespaces(), *(path.name for path in Path("/sys/class/net").iterdir())]:
        match = _TAG.fullmatch(name)
        if match and not _alive(int(match[2])):
            kind = ["netns"] if "n" in name[len(match[1]) :] else ["link"]
            network.run_commands([["ip", *kind, "delete", name]], check=False)
    hierarchies = find_hierarchies(_mounts())
    for folder in hierarchies.cpu.iterdir() if hierarchies is not None else ():
        match = _GROUP.fullmatch(folder.name)
        if hierarchies is not None and match and not _alive(int(match[1])):
            DeviceGroups(hierarchies, folder.name).remove()


def _alive(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()


def _mounts() -> str:
    return Path("/proc/mounts").read_text(encoding="utf-8")
