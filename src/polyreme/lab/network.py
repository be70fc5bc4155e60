"""Nodes of a lab as network namespaces on one bridge, their links limited in rate by the kernel's traffic control.

What a node sends to each other node has a class of its own with that link's rate; what it receives in all is limited by
its fastest link. Latency is not emulated: that takes a queueing discipline that many kernels lack.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyreme.errors import InputError

INTERFACE = "eth0"
"""Name of a node's end of its cable, inside its namespace."""
UNLIMITED_BYTES_PER_S = 5e8
"""Faster links are left alone: on one machine the processes are the limit then, not the wire."""
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Network:
    """One lab's network: `tag` starts all names, `subnet` is the first three numbers of its addresses."""

    tag: str
    subnet: str
    num_nodes: int

    @property
    def bridge(self) -> str:
        """Name of the bridge; its address is where workers find the launcher."""
        return f"{self.tag}b"

    @property
    def address(self) -> str:
        """Address of the bridge."""
        return f"{self.subnet}.1"

    def namespace(self, node: int) -> str:
        """Name of a node's namespace."""
        return f"{self.tag}n{node}"

    def cable(self, node: int) -> str:
        """Name of the end of a node's cable at the bridge."""
        return f"{self.tag}v{node}"

    def node_address(self, node: int) -> str:
        """Address of a node."""
        return f"{self.subnet}.{2 + node}"


def build_commands(network: Network, rates: Mapping[tuple[int, int], float]) -> list[list[str]]:
    """The commands that make a network. `rates` are bytes per second from node to node; a missing pair is cut off."""
    commands = [
        ["ip", "link", "add", network.bridge, "type", "bridge"],
        ["ip", "address", "add", f"{network.address}/24", "dev", network.bridge],
        ["ip", "link", "set", network.bridge, "up"],
    ]
    for node in range(network.num_nodes):
        inside, cable = ["ip", "-n", network.namespace(node)], network.cable(node)
        peer = ["peer", "name", INTERFACE, "netns", network.namespace(node)]
        commands += [
            ["ip", "netns", "add", network.namespace(node)],
            ["ip", "link", "add", cable, "type", "veth", *peer],
            ["ip", "link", "set", cable, "master", network.bridge, "up"],
            [*inside, "address", "add", f"{network.node_address(node)}/24", "dev", INTERFACE],
            [*inside, "link", "set", INTERFACE, "up"],
            [*inside, "link", "set", "lo", "up"],
            *_limit_commands(network, node, rates),
        ]
    return commands


def _limit_commands(network: Network, node: int, rates: Mapping[tuple[int, int], float]) -> list[list[str]]:
    peers = {other: rates.get((node, other)) for other in range(network.num_nodes) if other != node}
    cut_off = [other for other, rate in peers.items() if rate is None]
    inside = ["ip", "-n", network.namespace(node)]
    commands = [[*inside, "route", "add", "blackhole", f"{network.node_address(other)}/32"] for other in cut_off]
    limited = {other: rate for other, rate in peers.items() if rate is not None and rate < UNLIMITED_BYTES_PER_S}
    if limited:
        tc = ["tc", "-n", network.namespace(node)]
        device = ["dev", INTERFACE]
        commands.append([*tc, "qdisc", "add", *device, "root", "handle", "1:", "htb"])
        for other, rate in limited.items():
            number = f"1:{10 + other:x}"
            address = f"{network.node_address(other)}/32"
            match = ["protocol", "ip", "u32", "match", "ip", "dst", address, "flowid", number]
            commands += [
                [*tc, "class", "add", *device, "parent", "1:", "classid", number, "htb", *_rate(rate)],
                [*tc, "filter", "add", *device, "parent", "1:", *match],
            ]
    incoming = [rate for (_, target), rate in rates.items() if target == node]
    if incoming and max(incoming) < UNLIMITED_BYTES_PER_S:
        root = ["tc", "qdisc", "add", "dev", network.cable(node), "root", "handle", "1:", "htb", "default", "1"]
        whole = ["tc", "class", "add", "dev", network.cable(node), "parent", "1:", "classid", "1:1", "htb"]
        commands += [root, [*whole, *_rate(max(incoming))]]
    return commands


def _rate(bytes_per_s: float) -> list[str]:
    """A rate, and as burst what passes in 2 ms but at least one largest packet."""
    burst = max(64 * 1024, round(bytes_per_s * 2e-3))
    return ["rate", f"{round(8 * bytes_per_s)}bit", "burst", str(burst), "quantum", "60000"]


def remove_commands(network: Network) -> list[list[str]]:
    """The commands that remove a network. One end of a cable takes the other with it, at once."""
    nodes = range(network.num_nodes)
    cables = [["ip", "link", "delete", network.cable(node)] for node in nodes]
    spaces = [["ip", "netns", "delete", network.namespace(node)] for node in nodes]
    return [*cables, *spaces, ["ip", "link", "delete", network.bridge]]


def run_commands(commands: Sequence[Sequence[str]], *, check: bool = True) -> None:
    """Run commands in order. InputError with what the first failing one said, unless `check` is off."""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            problem = f"`{' '.join(command)}` failed: {done.stderr.strip()}"
            raise InputError.single("lab", problem, fix="train without --lab: devices are then emulated by waiting")


def missing_tools() -> list[str]:
    """Of the commands that a network needs, those that are not installed."""
    return [tool for tool in ("ip", "tc") if shutil.which(tool) is None]


def free_subnet(first: int) -> str:
    """A subnet that no interface here has an address in, tried from number `first`."""
    shown = subprocess.run(["ip", "-o", "-4", "address"], capture_output=True, text=True, check=False).stdout  # noqa: S607
    numbers = ((first + tried) % 256 for tried in range(256))
    return next(subnet for number in numbers if f" {(subnet := f'10.213.{number}')}." not in shown)


def namespaces() -> list[str]:
    """Names of all network namespaces that have one."""
    return sorted(path.name for path in _NAMESPACES.iterdir()) if _NAMESPACES.is_dir() else []


def enter(namespace: str) -> None:
    """Move this thread, and all that it starts, into a network namespace. OSError if that is not allowed."""
    handle = os.open(_NAMESPACES / namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)
    finally:
        os.close(handle)
