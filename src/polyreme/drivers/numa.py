"""Keeps a worker on the cores next to its device, where memory that both use is nearest."""

import os
import sys
from pathlib import Path

_NODES = Path("/sys/devices/system/node")
_PCI_DEVICES = Path("/sys/bus/pci/devices")


def parse_cpu_list(text: str) -> set[int]:
    """`0-3,8` as the kernel writes it -> {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def node_of_pci(address: str, devices: Path = _PCI_DEVICES) -> int | None:
    """NUMA node of a PCI device such as `0000:3b:00.0`; None if the kernel does not say."""
    try:
        number = int((devices / address.lower() / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def bind_to_node(node: int | None, nodes: Path = _NODES) -> frozenset[int]:
    """Let this process run only on the cores of a NUMA node that it may use; returns the cores that it has then.

    Does nothing where the node is unknown or shares no core with what the process may use.
    """
    if sys.platform != "linux":
        return frozenset()
    allowed = os.sched_getaffinity(0)
    if node is None:
        return frozenset(allowed)
    try:
        cores = parse_cpu_list((nodes / f"node{node}" / "cpulist").read_text(encoding="ascii")) & allowed
    except (OSError, ValueError):
        return frozenset(allowed)
    if cores:
        os.sched_setaffinity(0, cores)
    return frozenset(cores or allowed)
