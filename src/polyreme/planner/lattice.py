"""All ways to have used devices of each group, as rows of arrays: the states that the partition search fills in.

A row is a vector of counts, one per group, numbered in mixed radix; its depth is the number of devices used. Rows of
one depth follow from rows of the depth before, so everything about a depth and a group is one array operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from polyreme.errors import InputError

Rows = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
MAX_VALUES = 40_000_000
"""Most numbers that one table may hold, 320 MB."""


@dataclass(frozen=True, slots=True)
class Move:
    """Putting a device of `group` in front: rows after it, rows before it, and the device number it takes.

    `behind` holds, per row and group, the number of the device of that group that was used last; -1 for none.
    """

    depth: int
    group: int
    rows: Rows
    before: Rows
    front: Rows
    behind: Rows


class Lattice:
    """Rows for groups of the given sizes, no deeper than `deepest`."""

    def __init__(self, sizes: Sequence[int], deepest: int, num_values: int) -> None:
        self.sizes = [min(size, deepest) for size in sizes]
        self.num_rows = prod(size + 1 for size in self.sizes)
        if self.num_rows * len(sizes) * num_values > MAX_VALUES:
            raise InputError.single(
                "cluster",
                f"has {len(sizes)} kinds of device in numbers that leave {self.num_rows:,} sets to choose from, "
                "more than this planner searches",
                fix="plan over fewer kinds or fewer devices of each",
            )
        strides = [prod(size + 1 for size in self.sizes[group + 1 :]) for group in range(len(sizes))]
        numbers = np.arange(self.num_rows)
        self.counts: Rows = np.stack(
            [numbers // stride % (size + 1) for stride, size in zip(strides, self.sizes, strict=True)], axis=1
        )
        self.offsets = [sum(sizes[:group]) for group in range(len(sizes))]
        depths = self.counts.sum(axis=1)
        self.moves = [
            self._move(depth, group, strides[group], depths)
            for depth in range(1, min(deepest, sum(self.sizes)) + 1)
            for group in range(len(sizes))
        ]

    def _move(self, depth: int, group: int, stride: int, depths: Rows) -> Move:
        rows = np.flatnonzero((depths == depth) & (self.counts[:, group] > 0))
        before = rows - stride
        used = self.counts[before]
        return Move(
            depth=depth,
            group=group,
            rows=rows,
            before=before,
            front=self.offsets[group] + self.counts[rows, group] - 1,
            behind=np.where(used > 0, np.asarray(self.offsets) + used - 1, -1),
        )
