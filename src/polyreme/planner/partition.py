"""The exact search for one microbatch size: which devices, in which order, with how many blocks each.

A pipeline is built from its last stage forward. With bottleneck bound T (no stage and no link slower than T) a step
takes (m - 1) T + S, S the sum of all stage and boundary times: fill, drain and the bottleneck's m microbatches. For
each T two dynamic programs over (devices used per group, group of the foremost stage) are run: the first finds how many
blocks can be placed at most, the second the least S for every number of blocks. T runs over all times that a stage or
link can take; bounds leave few of them to look at.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyreme.planner.lattice import Bools, Floats, Lattice, Move, Rows
from polyreme.planner.space import Space

_INFINITE = float("inf")
_NOTHING = -(10**9)
"""Blocks placed in a state that cannot be reached."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages from first to last as (group, position in group, blocks)."""

    stages: tuple[tuple[int, int, int], ...]
    step_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit on the step: its time, or with `prices` per device of a group on price x time."""

    most: float
    prices: Sequence[float] | None = None


class PartitionSearch:
    """Searches one `Space`. With `prices` per device of a group, price x step time is minimised, else the time.

    Caps keep the search exact: for given devices and bottleneck, the least S meets every cap that any S meets.
    InputError if the fleet has too many different sets of devices to choose from.
    """

    def __init__(self, space: Space, prices: Sequence[float] | None = None, caps: Sequence[Cap] = ()) -> None:
        self.space = space
        self.priced = prices is not None
        self.m = space.num_microbatches
        self.total = space.num_blocks
        sizes = [len(group.devices) for group in space.groups]
        self.lattice = Lattice(sizes, self.total + 2, self.total + 1)
        self.weight = self._weights(prices)
        self.caps = [(cap.most, self._weights(cap.prices)) for cap in caps]

    def can_hold(self) -> bool:
        """Whether any partition fits memory and links."""
        return bool(self._covering(_INFINITE).any())

    def best(self, to_beat: float = _INFINITE) -> Partition | None:
        """The partition of least value; None if none fits or none is better than `to_beat`."""
        bounds = self._bounds()
        least = self._solve(_INFINITE)[1].min(axis=1)

        def hopes(bound: float) -> Floats:
            return self._values((self.m - 1) * bound + least)

        stop = bisect_left(bounds, to_beat, key=lambda bound: float(hopes(bound).min()))
        if stop == 0 or not self._covering(bounds[stop - 1]).any():
            return None
        start = bisect_left(bounds, True, hi=stop, key=lambda bound: bool(self._covering(bound).any()))
        found: Partition | None = None
        for bound in bounds[start:stop]:
            hoped = hopes(bound)
            if self.priced:
                hoped = np.where(self._covering(bound), hoped, _INFINITE)
            if hoped.min() >= to_beat:
                if self.priced:
                    continue
                break
            candidate = self._best_at(bound, to_beat)
            if candidate is not None:
                found, to_beat = candidate, candidate.value
        return found

    def _weights(self, prices: Sequence[float] | None) -> Floats:
        """Per row, the value of one second on its devices: 1 for time, else the sum of their prices."""
        if prices is None:
            return np.ones(self.lattice.num_rows)
        return np.asarray(self.lattice.counts @ np.asarray(prices, dtype=np.float64), dtype=np.float64)

    def _values(self, steps_s: Floats) -> Floats:
        """What each row's step is worth; infinite where a cap forbids it."""
        with np.errstate(invalid="ignore"):  # devices that cost nothing, on a step that cannot be
            values = np.nan_to_num(self.weight * steps_s, nan=_INFINITE, posinf=_INFINITE)
            for most, weight in self.caps:
                values[~(weight * steps_s <= most)] = _INFINITE
        return values

    def _bounds(self) -> list[float]:
        """All times that a stage or a link can take, ascending."""
        space = self.space
        found = {
            space.stage_s(group, blocks, first=first, last=last)
            for group in range(len(space.groups))
            for first in (False, True)
            for last in (False, True)
            for blocks in range(self.total + 1)
        }
        found |= set(self._occupancy[np.isfinite(self._occupancy)].tolist())
        return sorted(time for time in found if time > 0)

    @cached_property
    def _links(self) -> tuple[Floats, Floats]:
        """Occupancy and latency between any two devices, and to a last line of no device: infinite without a way."""
        devices = [device for group in self.space.groups for device in group.devices]
        occupancy = np.full((len(devices) + 1, len(devices) + 1), _INFINITE)
        latency = np.full_like(occupancy, _INFINITE)
        for row, one in enumerate(devices):
            for column, other in enumerate(devices):
                link = self.space.link(one, other) if row != column else None
                if link is not None:
                    occupancy[row, column] = self.space.message_bytes / link.bandwidth_bytes_per_s
                    latency[row, column] = link.latency_s
        return occupancy, latency

    @property
    def _occupancy(self) -> Floats:
        return self._links[0]

    @cached_property
    def _boundaries(self) -> list[tuple[Floats, Floats]]:
        """Per move, row and group of the stage behind: occupancy of the link between, and seconds both ways over it."""
        occupancy, latency = self._links
        found = []
        for move in self.lattice.moves:
            places = move.front[:, None], move.behind
            found.append((occupancy[places], 2 * (occupancy[places] + latency[places])))
        return found

    def _covering(self, bound: float) -> Bools:
        """Rows whose devices can hold the whole model with no stage or link slower than `bound`.

        A state of depth d holds at least d - 1 blocks, since only the last stage may have none, and any number up to
        the most.
        """
        lattice = self.lattice
        most_placed = np.full(lattice.counts.shape, _NOTHING)
        found = np.zeros(lattice.num_rows, dtype=np.bool_)
        for move, (occupancy, _) in zip(lattice.moves, self._boundaries, strict=True):
            last = move.depth == 1
            placed: Rows = np.zeros(len(move.rows), dtype=np.int64)
            if not last:
                usable = (occupancy <= bound) & np.isfinite(occupancy)
                placed = np.where(usable, most_placed[move.before], _NOTHING).max(axis=1)
            closing = self._most(move, bound, first=True)
            if closing >= 0 and move.depth - 2 <= self.total:
                found[move.rows] |= placed + closing >= self.total
            most = self._most(move, bound, first=False)
            if most >= (0 if last else 1):
                most_placed[move.rows, move.group] = placed + most
        return found

    def _solve(self, bound: float) -> tuple[Floats, Floats]:
        """Least S per state: by number of placed blocks, embedding not placed yet [rows, groups, blocks + 1]; and with
        all blocks placed and the embedding on the foremost stage [rows, groups]."""
        shape = self.lattice.counts.shape
        sums, closed = np.full((*shape, self.total + 1), _INFINITE), np.full(shape, _INFINITE)
        for index, move in enumerate(self.lattice.moves):
            base = self._behind(sums, index, bound)
            most = self._most(move, bound, first=True)
            if most >= 0:
                step, ends = self._stage(move, first=True)
                ways = base[:, self.total - most :][:, ::-1] + np.arange(most + 1) * step
                closed[move.rows, move.group] = ways.min(axis=1) + ends
            most, least = self._most(move, bound, first=False), 0 if move.depth == 1 else 1
            if most >= least:
                step, ends = self._stage(move, first=False)
                placed = np.full_like(base, _INFINITE)
                for blocks in range(least, most + 1):
                    shifted = base[:, : self.total + 1 - blocks] + (blocks * step + ends)
                    np.minimum(placed[:, blocks:], shifted, out=placed[:, blocks:])
                sums[move.rows, move.group] = placed
        return sums, closed

    def _behind(self, sums: Floats, index: int, bound: float) -> Floats:
        """Least S behind the new stage of a move, boundary included, per row and number of placed blocks."""
        move, (occupancy, both_ways_s) = self.lattice.moves[index], self._boundaries[index]
        if move.depth == 1:
            nothing = np.full((len(move.rows), self.total + 1), _INFINITE)
            nothing[:, 0] = 0.0
            return nothing
        boundary_s = np.where(occupancy <= bound, both_ways_s, _INFINITE)
        best: Floats = (sums[move.before] + boundary_s[:, :, None]).min(axis=1)
        return best

    def _best_at(self, bound: float, to_beat: float) -> Partition | None:
        sums, closed = self._solve(bound)
        steps_s = (self.m - 1) * bound + closed.min(axis=1)
        values = self._values(steps_s)
        row = int(values.argmin())
        if not values[row] < to_beat:
            return None
        stages = tuple(self._trace(sums, bound, row, int(closed[row].argmin())))
        return Partition(stages, float(steps_s[row]), float(values[row]))

    def _trace(self, sums: Floats, bound: float, row: int, group: int) -> Iterator[tuple[int, int, int]]:
        """Stages from first to last of a way that leads to the least S of a state: found again, not remembered."""
        left, first = self.total, True
        while True:
            counts = self.lattice.counts[row]
            position, depth = int(counts[group]) - 1, int(counts.sum())
            index = (depth - 1) * len(counts) + group
            move = self.lattice.moves[index]
            most = min(left, self._most(move, bound, first=first))
            if depth == 1:
                yield group, position, left
                return
            line = int(np.searchsorted(move.rows, row))
            occupancy, both_ways_s = (table[line] for table in self._boundaries[index])
            boundary_s = np.where(occupancy <= bound, both_ways_s, _INFINITE)
            numbers = np.arange(0 if first else 1, most + 1)
            ways = sums[move.before[line]][:, left - numbers] + boundary_s[:, None]
            ways += numbers * self._stage(move, first=first)[0]
            other, chosen = divmod(int(ways.argmin()), len(numbers))
            yield group, position, int(numbers[chosen])
            left, row, group, first = left - int(numbers[chosen]), int(move.before[line]), other, False

    def _stage(self, move: Move, *, first: bool) -> tuple[float, float]:
        """Seconds of a block, and of what else the stage holds, on the device put in front."""
        ends = self.space.stage_s(move.group, 0, first=first, last=move.depth == 1)
        return self.space.block_s[move.group], ends

    def _most(self, move: Move, bound: float, *, first: bool) -> int:
        """Most blocks on the stage put in front, within time bound and memory; -1 if not even its ends fit."""
        step, ends = self._stage(move, first=first)
        spare = bound - ends
        if spare < 0:
            return -1
        fitting = self.space.fitting_blocks(move.group, move.depth - 1, first=first, last=move.depth == 1)
        in_time = self.total if spare == _INFINITE else int(spare / step + 1e-9) if step else fitting
        return min(fitting, in_time)
