"""The space that is searched: groups of interchangeable devices, and what a stage costs on each.

Devices of one kind and price are interchangeable and used in file order, so that a stage's device follows from how
many of its group the stages behind it took. All blocks are alike, so a stage is (group, blocks, embedding?, head?).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from polyreme.catalog.fleet import Device
from polyreme.costs.model import CostModel
from polyreme.schedules.generate import num_in_flight
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import ScheduleName
from polyreme.units import format_bytes


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Devices that cannot take part, and why."""

    kind: str
    num_devices: int
    reason: str


@dataclass(frozen=True)
class Group:
    """Interchangeable devices, in the order in which they are used."""

    kind: DeviceKind
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class Space:
    """Stage costs for one microbatch size and schedule. Times are seconds of one microbatch, forward and backward."""

    costs: CostModel
    groups: tuple[Group, ...]
    sequences: int
    num_microbatches: int
    schedule: ScheduleName
    memory_fraction: float

    @property
    def num_blocks(self) -> int:
        """Blocks of the model."""
        return self.costs.model.num_layers

    @cached_property
    def block_s(self) -> list[float]:
        """Time of one block, per group."""
        return [self.costs.layer(group.kind, 1, self.sequences).total_s for group in self.groups]

    @cached_property
    def embedding_s(self) -> list[float]:
        """Time of the embedding, per group."""
        return [self.costs.layer(group.kind, 0, self.sequences).total_s for group in self.groups]

    @cached_property
    def head_s(self) -> list[float]:
        """Time of the head, per group."""
        return [self.costs.layer(group.kind, self.num_blocks + 1, self.sequences).total_s for group in self.groups]

    def stage_s(self, group: int, blocks: int, *, first: bool, last: bool) -> float:
        """Time of a stage."""
        ends = first * self.embedding_s[group] + last * self.head_s[group]
        return blocks * self.block_s[group] + ends

    def fitting_blocks(self, group: int, stages_behind: int, *, first: bool, last: bool) -> int:
        """Most blocks that memory allows on a stage with `stages_behind` after it; -1 if not even its ends fit."""
        key = (group, stages_behind, first, last)
        if key not in self._fitting:
            self._fitting[key] = self._count_fitting(*key)
        return self._fitting[key]

    def link(self, source: Device, target: Device) -> LinkKind | None:
        """Link between two devices, None if messages cannot go both ways."""
        key = (source.name, target.name)
        if key not in self._links:
            self._links[key] = self.costs.link(source, target)
        return self._links[key]

    @cached_property
    def message_bytes(self) -> float:
        """Bytes of one boundary message."""
        return self.costs.boundary_bytes(self.sequences)

    @cached_property
    def _fitting(self) -> dict[tuple[int, int, bool, bool], int]:
        return {}

    @cached_property
    def _links(self) -> dict[tuple[str, str], LinkKind | None]:
        return {}

    def _count_fitting(self, group: int, stages_behind: int, first: bool, last: bool) -> int:
        kind = self.groups[group].kind
        in_flight = num_in_flight(self.schedule, stages_behind + 1, 0, self.num_microbatches)
        limit = kind.memory_bytes * self.memory_fraction
        ends = self._bytes(kind, 0, first, last, in_flight)
        if ends > limit:
            return -1
        per_block = self._bytes(kind, 1, False, False, in_flight) - self._bytes(kind, 0, False, False, in_flight)
        return min(self.num_blocks, int((limit - ends) // per_block))

    def _bytes(self, kind: DeviceKind, blocks: int, first: bool, last: bool, in_flight: int) -> float:
        layers = [*([0] if first else []), *range(1, 1 + blocks), *([self.num_blocks + 1] if last else [])]
        return sum(self.costs.stage_memory(kind, layers, self.sequences, in_flight).values())


def make_groups(costs: CostModel, memory_fraction: float) -> tuple[tuple[Group, ...], tuple[LeftOut, ...]]:
    """Groups of devices that can take part, and those that cannot: wrong precision, or too small for one block."""
    by_kind: dict[tuple[str, float | None], list[Device]] = {}
    for device in costs.fleet.devices:
        by_kind.setdefault((device.kind.name, device.kind.price_usd_per_hour), []).append(device)
    groups, left_out = [], []
    for devices in by_kind.values():
        kind = devices[0].kind
        reason = _why_not(costs, kind, memory_fraction)
        if reason is None:
            groups.append(Group(kind, tuple(devices)))
        else:
            left_out.append(LeftOut(kind.name, len(devices), reason))
    return tuple(groups), tuple(left_out)


def linked(costs: CostModel, groups: Sequence[Group]) -> tuple[tuple[Group, ...], ...]:
    """The groups of each set of devices that reach one another, over others or directly, in file order: no pipeline
    spans two such sets, and inside one a device that no other reaches must not be first in its group."""
    left = {device.name: device for group in groups for device in group.devices}
    sets: list[tuple[Group, ...]] = []
    while left:
        todo = [left.pop(next(iter(left)))]
        names = {todo[0].name}
        while todo:
            device = todo.pop()
            reached = [other for other in left.values() if costs.link(device, other) is not None]
            for other in reached:
                names.add(other.name)
                todo.append(left.pop(other.name))
        members = [Group(group.kind, tuple(d for d in group.devices if d.name in names)) for group in groups]
        sets.append(tuple(group for group in members if group.devices))
    return tuple(sets)


def smallest_block_bytes(costs: CostModel, kind: DeviceKind) -> float:
    """Bytes that one block needs with one sequence in flight."""
    return sum(costs.stage_memory(kind, range(1, 2), 1, 1).values())


def microbatch_sizes(sequences: int, most: int = 64) -> list[int]:
    """Divisors of the batch up to `most` sequences, smallest first."""
    return [size for size in range(1, min(sequences, most) + 1) if sequences % size == 0]


def describe(devices: Sequence[Device]) -> str:
    """`8 x a100 + 2 x v100`, in order of first use."""
    counts: dict[str, int] = {}
    for device in devices:
        counts[device.kind.name] = counts.get(device.kind.name, 0) + 1
    return " + ".join(f"{count} x {name}" for name, count in counts.items())


def _why_not(costs: CostModel, kind: DeviceKind, memory_fraction: float) -> str | None:
    if not kind.runs(costs.precision):
        known = ", ".join(kind.peak_flops_per_s or {}) or "none known"
        return f"does not compute in {costs.precision} (it does: {known})"
    needed, limit = smallest_block_bytes(costs, kind), kind.memory_bytes * memory_fraction
    if needed > limit:
        return f"one block needs {format_bytes(needed)}, the device may hold {format_bytes(limit)}"
    return None
