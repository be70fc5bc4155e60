"""A cluster file resolved: every device by name with its figures, and the link between any two of them."""

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from polyreme.catalog.entries import device_kinds, link_kinds
from polyreme.errors import Fault, InputError
from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.ranges import expand

DEVICE_NAMES = {"cuda": "gpu", "rocm": "gpu", "ascend": "npu"}
"""What devices of a driver are called where the file does not say; others are called like their driver."""
NO_LINK = "none"
MAX_DEVICES = 100_000
MAX_PAIRS = 1_000_000
MAX_NAMED = 8
"""Limits that keep a short file with a wide range from taking minutes: devices, pairs, faults of one range."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `name` is `<node>/<name><index>`; the price is the node's own if the file gives one."""

    name: str
    node: str
    kind: DeviceKind


@dataclass(frozen=True, slots=True)
class Fleet:
    """All devices in file order; `connections` maps (node, node) to a link, or None where there is no way."""

    devices: tuple[Device, ...]
    intra: Mapping[str, LinkKind]
    inter: Mapping[str, LinkKind]
    connections: Mapping[tuple[str, str], LinkKind | None]
    host_memory_bytes: Mapping[str, float]

    def link(self, source: Device, target: Device) -> LinkKind | None:
        """The link from one device to another, one direction; None if there is no way.

        Inside a node: its intra plane, else the slower of the two devices' own links. Between nodes: the connection
        the file names, else the slower of the two nodes' inter planes.
        """
        if source.node == target.node:
            plane = self.intra.get(source.node)
            return plane or _slower(source.kind.link, target.kind.link)
        if (source.node, target.node) in self.connections:
            return self.connections[source.node, target.node]
        return _slower(self.inter.get(source.node), self.inter.get(target.node))

    def device(self, name: str) -> Device:
        """The device called `name`. InputError if there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise InputError.single("cluster", f"has no device {name!r}", fix=_close(name, [d.name for d in self.devices]))


def build_fleet(cluster: ClusterSpec, source: str = "cluster") -> Fleet:
    """Resolve every name of `cluster`. InputError lists all unknown or repeated ones; `source` names the file."""
    return _Resolver(cluster, source).resolve()


K = TypeVar("K", DeviceKind, LinkKind)


class _Resolver:
    def __init__(self, cluster: ClusterSpec, source: str) -> None:
        self.cluster = cluster
        self.source = source
        self.faults: list[Fault] = []
        self.kinds = device_kinds() | self._own(cluster.device_kinds, "device_kinds")
        self.links = link_kinds() | self._own(cluster.link_kinds, "link_kinds")

    def resolve(self) -> Fleet:
        devices: list[Device] = []
        intra: dict[str, LinkKind] = {}
        inter: dict[str, LinkKind] = {}
        memory: dict[str, float] = {}
        names: list[str] = []
        for index, node in enumerate(self.cluster.nodes):
            path = f"nodes[{index}]"
            planes = (
                self._link(node.links.intra, f"{path}.links.intra"),
                self._link(node.links.inter, f"{path}.links.inter"),
            )
            kinds = [self._kind(entry, f"{path}.devices[{number}]") for number, entry in enumerate(node.devices)]
            node_names = self._expand(node.name, f"{path}.name")
            if len(devices) + len(node_names) * sum(entry.count for entry in node.devices) > MAX_DEVICES:
                self._fault(f"{path}.devices", f"makes more than {MAX_DEVICES} devices in all", None)
                raise InputError(self.faults)
            for name in node_names:
                names.append(name)
                devices += self._devices(node, name, kinds)
                for found, plane in zip((intra, inter), planes, strict=True):
                    if plane is not None:
                        found[name] = plane
                if node.host_memory_bytes is not None:
                    memory[name] = node.host_memory_bytes
        for name, count in Counter(names).items():
            if count > 1:
                self._fault("nodes", f"node {name!r} appears {count} times", "give every node its own name")
        connections = self._connections(names)
        if self.faults:
            raise InputError(self.faults)
        return Fleet(tuple(devices), intra, inter, connections, memory)

    def _own(self, kinds: tuple[K, ...], path: str) -> dict[str, K]:
        for name, count in Counter(kind.name for kind in kinds).items():
            if count > 1:
                self._fault(path, f"{name!r} is defined {count} times", "keep one")
        return {kind.name: kind for kind in kinds}

    def _devices(self, node: Node, node_name: str, kinds: list[DeviceKind | None]) -> Iterable[Device]:
        taken: Counter[str] = Counter()
        for entry, kind in zip(node.devices, kinds, strict=True):
            if kind is None:
                continue
            name = entry.name or DEVICE_NAMES.get(kind.driver, kind.driver)
            for _ in range(entry.count):
                yield Device(f"{node_name}/{name}{taken[name]}", node_name, kind)
                taken[name] += 1

    def _kind(self, entry: DeviceEntry, path: str) -> DeviceKind | None:
        kind = self.kinds.get(entry.kind)
        if kind is None:
            self._fault(
                f"{path}.kind",
                f"{entry.kind!r} is no device of the catalogue or of device_kinds",
                _close(entry.kind, self.kinds),
            )
        elif entry.price_usd_per_hour is not None:
            kind = dataclasses.replace(kind, price_usd_per_hour=entry.price_usd_per_hour)
        return kind

    def _link(self, name: str | None, path: str) -> LinkKind | None:
        if name is None:
            return None
        link = self.links.get(name)
        if link is None:
            self._fault(path, f"{name!r} is no link of the catalogue or of link_kinds", _close(name, self.links))
        return link

    def _connections(self, names: list[str]) -> dict[tuple[str, str], LinkKind | None]:
        found: dict[tuple[str, str], LinkKind | None] = {}
        known, num_pairs = set(names), 0
        for index, connection in enumerate(self.cluster.connections):
            path = f"connections[{index}]"
            link = None if connection.link == NO_LINK else self._link(connection.link, f"{path}.link")
            sources = self._known_nodes(connection.source, known, f"{path}.from")
            targets = self._known_nodes(connection.target, known, f"{path}.to")
            num_pairs += len(sources) * len(targets)
            if num_pairs > MAX_PAIRS:
                self._fault(path, f"makes more than {MAX_PAIRS} pairs of nodes in all", "use links.inter of the nodes")
                break
            for source in sources:
                for target in targets:
                    found[source, target] = link
                    if connection.both_ways:
                        found[target, source] = link
        return found

    def _known_nodes(self, text: str, known: set[str], path: str) -> list[str]:
        """The nodes that `text` stands for; the first few names that are no nodes are faults, the rest are counted."""
        names = self._expand(text, path)
        unknown = [name for name in names if name not in known]
        for name in unknown[:MAX_NAMED]:
            self._fault(path, f"{name!r} is no node", _close(name, sorted(known)) if len(known) < 1000 else None)
        if len(unknown) > MAX_NAMED:
            self._fault(path, f"{len(unknown) - MAX_NAMED} more names are no nodes", None)
        return [name for name in names if name in known]

    def _expand(self, text: str, path: str) -> list[str]:
        try:
            return expand(text)
        except ValueError as error:
            self._fault(path, str(error), None)
            return []

    def _fault(self, path: str, problem: str, fix: str | None) -> None:
        self.faults.append(Fault(source=self.source, path=path, problem=problem, fix=fix))


def _slower(one: LinkKind | None, other: LinkKind | None) -> LinkKind | None:
    """What a path over both links does: the lower bandwidth and the higher latency. None if either is missing."""
    if one is None or other is None:
        return None
    narrow = one if one.bandwidth_bytes_per_s <= other.bandwidth_bytes_per_s else other
    return dataclasses.replace(narrow, latency_s=max(one.latency_s, other.latency_s))


def _close(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else None
