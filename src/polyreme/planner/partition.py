"""The exact search for one microbatch size: which devices, in which order, with how many blocks each.

A pipeline is built from its last stage forward. With bottleneck bound T (no stage and no link slower than T) a step
takes (m - 1) T + S, S the sum of all stage and boundary times: fill, drain and the bottleneck's m microbatches. For
each T two dynamic programs over (devices used per group, group of the foremost stage) are run: the first finds between
how few and how many blocks can be placed, the second the least S for every number of blocks. T runs over all times
that a stage or link can take; bounds leave few of them to look at.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyreme.planner.space import Space

Counts = tuple[int, ...]
State = tuple[Counts, int]
"""(devices used per group, group of the foremost stage so far)."""
_INFINITE = float("inf")
_NO_CHOICE: tuple[int, State | None] = (0, None)


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages from first to last as (group, position in group, blocks)."""

    stages: tuple[tuple[int, int, int], ...]
    step_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Entry:
    """Least sums for 0..num_blocks placed blocks; per sum: blocks of the front stage, and the state behind it."""

    sums: list[float]
    choices: list[tuple[int, State | None]]


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit on the step: its time, or with `prices` per device of a group on price x time."""

    most: float
    prices: Sequence[float] | None = None


class PartitionSearch:
    """Searches one `Space`. With `prices` per device of a group, price x step time is minimised, else the time.

    Caps keep the search exact: for given devices and bottleneck, the least S meets every cap that any S meets.
    """

    def __init__(self, space: Space, prices: Sequence[float] | None = None, caps: Sequence[Cap] = ()) -> None:
        self.space = space
        self.prices = prices
        self.caps = caps
        self.m = space.num_microbatches
        self.sizes = [len(group.devices) for group in space.groups]
        self._free: dict[Counts, float] | None = None
        self._counts: list[Counts] = []

    def weight(self, counts: Counts) -> float:
        """Value of one second on these devices: 1 for time, else the sum of their prices or powers."""
        return _weight(counts, self.prices)

    def _within(self, counts: Counts, step_s: float) -> bool:
        return all(_weight(counts, cap.prices) * step_s <= cap.most for cap in self.caps)

    def bounds(self) -> list[float]:
        """All times that a stage or a link can take, ascending."""
        space, found = self.space, set[float]()
        for group in range(len(space.groups)):
            for first in (False, True):
                for last in (False, True):
                    for blocks in range(space.num_blocks + 1):
                        found.add(space.stage_s(group, blocks, first=first, last=last))
        found |= {self._boundary(one, other)[0] for one, other in self._neighbours()}
        return sorted(time for time in found if 0 < time < _INFINITE)

    def best(self, to_beat: float = _INFINITE) -> Partition | None:
        """The partition of least value; None if none fits or none is better than `to_beat`."""
        bounds = self.bounds()
        start = bisect_left(bounds, True, key=lambda bound: bool(self.covering(bound)))
        least = self.least_sums()
        found: Partition | None = None
        for bound in bounds[start:]:
            reachable = self.covering(bound) if self.prices is not None else least.keys()
            steps = ((v, (self.m - 1) * bound + least[v]) for v in reachable if v in least)
            hope = min((self.weight(v) * step_s for v, step_s in steps if self._within(v, step_s)), default=_INFINITE)
            if hope >= to_beat:
                if self.prices is None:
                    break
                continue
            candidate = self._best_at(bound, to_beat)
            if candidate is not None:
                found, to_beat = candidate, candidate.value
        return found

    def least_sums(self) -> dict[Counts, float]:
        """Least S of each set of devices without a bound on the bottleneck."""
        if self._free is None:
            closed = self._close(self._sums(_INFINITE), _INFINITE)
            self._free = {counts: min(total for total, *_ in ways) for counts, ways in closed.items()}
        return self._free

    def covering(self, bound: float) -> set[Counts]:
        """Sets of devices that can hold the whole model with no stage or link slower than `bound`."""
        space, found = self.space, set[Counts]()
        spans: dict[State, tuple[int, int]] = {}
        for counts in self._all_counts():
            behind = sum(counts) - 1
            for group, used in enumerate(counts):
                if not used:
                    continue
                before = _less(counts, group)
                most = self._most(group, behind, bound, first=False, last=behind == 0)
                closing = self._most(group, behind, bound, first=True, last=behind == 0)
                for low, high in self._spans_behind(spans, counts, group, before, bound):
                    if closing >= 0 and low <= space.num_blocks <= high + closing:
                        found.add(counts)
                    least = 0 if behind == 0 else 1
                    if most >= least:
                        known = spans.get((counts, group), (low + least, high + most))
                        spans[counts, group] = (min(known[0], low + least), max(known[1], high + most))
        return found

    def _spans_behind(
        self, spans: dict[State, tuple[int, int]], counts: Counts, group: int, before: Counts, bound: float
    ) -> Iterator[tuple[int, int]]:
        if not any(before):
            yield 0, 0
            return
        for other, used in enumerate(before):
            if used and (before, other) in spans and self._boundary_of(counts, group, before, other)[0] <= bound:
                yield spans[before, other]

    def _sums(self, bound: float) -> dict[State, Entry]:
        """Least S for each state and number of placed blocks, embedding not placed yet."""
        entries: dict[State, Entry] = {}
        for counts in self._all_counts():
            behind = sum(counts) - 1
            for group, used in enumerate(counts):
                most = self._most(group, behind, bound, first=False, last=behind == 0) if used else -1
                least = 0 if behind == 0 else 1
                if most >= least:
                    entry = self._extend(entries, counts, group, (least, most), bound, first=False)
                    if min(entry.sums) < _INFINITE:
                        entries[counts, group] = entry
        return entries

    def _extend(
        self,
        entries: dict[State, Entry],
        counts: Counts,
        group: int,
        span: tuple[int, int],
        bound: float,
        *,
        first: bool,
    ) -> Entry:
        """Put a stage of `group` in front of every state behind it."""
        space, total = self.space, self.space.num_blocks + 1
        sums, choices = [_INFINITE] * total, [_NO_CHOICE] * total
        before, step = _less(counts, group), space.block_s[group]
        last = not any(before)
        ends = space.stage_s(group, 0, first=first, last=last)
        behind: Iterator[tuple[State | None, list[float], float]] = iter(
            [(None, [0.0] + [_INFINITE] * (total - 1), 0.0)]
            if last
            else self._behind(entries, counts, group, before, bound)
        )
        for state, base, boundary_s in behind:
            for placed, so_far in enumerate(base):
                if so_far == _INFINITE:
                    continue
                fixed = so_far + boundary_s + ends
                for blocks in range(span[0], min(span[1], total - 1 - placed) + 1):
                    value = fixed + blocks * step
                    if value < sums[placed + blocks]:
                        sums[placed + blocks] = value
                        choices[placed + blocks] = (blocks, state)
        return Entry(sums, choices)

    def _behind(
        self, entries: dict[State, Entry], counts: Counts, group: int, before: Counts, bound: float
    ) -> Iterator[tuple[State, list[float], float]]:
        for other, used in enumerate(before):
            entry = entries.get((before, other)) if used else None
            if entry is not None:
                occupancy, latency = self._boundary_of(counts, group, before, other)
                if occupancy <= bound and occupancy < _INFINITE:
                    yield (before, other), entry.sums, 2 * (occupancy + latency)

    def _close(self, entries: dict[State, Entry], bound: float) -> dict[Counts, list[tuple[float, int, Entry]]]:
        """For each set of devices, every way to put the first stage in front: (S, group, entry of that stage)."""
        closed: dict[Counts, list[tuple[float, int, Entry]]] = {}
        for counts in self._all_counts():
            behind = sum(counts) - 1
            for group, used in enumerate(counts):
                most = self._most(group, behind, bound, first=True, last=behind == 0) if used else -1
                if most >= 0:
                    entry = self._extend(entries, counts, group, (0, most), bound, first=True)
                    if entry.sums[-1] < _INFINITE:
                        closed.setdefault(counts, []).append((entry.sums[-1], group, entry))
        return closed

    def _best_at(self, bound: float, to_beat: float) -> Partition | None:
        entries = self._sums(bound)
        best: tuple[float, float, Counts, int, Entry] | None = None
        for counts, ways in self._close(entries, bound).items():
            for total, group, entry in ways:
                step_s = (self.m - 1) * bound + total
                value = self.weight(counts) * step_s
                if value < (to_beat if best is None else best[0]) and self._within(counts, step_s):
                    best = (value, step_s, counts, group, entry)
        if best is None:
            return None
        value, step_s, counts, group, entry = best
        return Partition(tuple(self._trace(entries, counts, group, entry)), step_s, value)

    def _trace(
        self, entries: dict[State, Entry], counts: Counts, group: int, entry: Entry
    ) -> Iterator[tuple[int, int, int]]:
        """Stages from first to last of the way that led to an entry's full number of blocks."""
        placed = self.space.num_blocks
        while True:
            blocks, state = entry.choices[placed]
            yield group, counts[group] - 1, blocks
            if state is None:
                return
            placed -= blocks
            counts, group = state
            entry = entries[state]

    def _most(self, group: int, behind: int, bound: float, *, first: bool, last: bool) -> int:
        """Most blocks on a stage within time bound and memory; -1 if not even its ends fit."""
        spare = bound - self.space.stage_s(group, 0, first=first, last=last)
        if spare < 0:
            return -1
        fitting = self.space.fitting_blocks(group, behind, first=first, last=last)
        step = self.space.block_s[group]
        in_time = self.space.num_blocks if spare == _INFINITE else int(spare / step + 1e-9) if step else fitting
        return min(fitting, in_time)

    def _boundary_of(self, counts: Counts, group: int, before: Counts, other: int) -> tuple[float, float]:
        """(occupancy, latency) of the link between the stage put in front and the one behind it."""
        return self._boundary((group, counts[group] - 1), (other, before[other] - 1))

    def _boundary(self, one: tuple[int, int], other: tuple[int, int]) -> tuple[float, float]:
        groups = self.space.groups
        link = self.space.link(groups[one[0]].devices[one[1]], groups[other[0]].devices[other[1]])
        if link is None:
            return _INFINITE, _INFINITE
        return self.space.message_bytes / link.bandwidth_bytes_per_s, link.latency_s

    def _neighbours(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        places = [(group, index) for group, size in enumerate(self.sizes) for index in range(size)]
        return ((one, other) for one in places for other in places if one != other)

    def _all_counts(self) -> list[Counts]:
        """All non-zero vectors of used devices, fewest devices first, no deeper than there are layers."""
        if not self._counts:
            found: list[Counts] = [()]
            for size in self.sizes:
                found = [(*counts, used) for counts in found for used in range(size + 1)]
            deepest = self.space.num_blocks + 2
            self._counts = sorted((counts for counts in found if 0 < sum(counts) <= deepest), key=sum)
        return self._counts


def _weight(counts: Counts, prices: Sequence[float] | None) -> float:
    return 1.0 if prices is None else sum(n * p for n, p in zip(counts, prices, strict=True))


def _less(counts: Counts, group: int) -> Counts:
    return (*counts[:group], counts[group] - 1, *counts[group + 1 :])
