"""In which order the sequences of a data set are drawn: shuffled anew every epoch, or fixed for evaluation.

Nothing is stored but a position: the number of sequences drawn so far says where every later one is.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Protocol

import numpy as np

from polyreme.errors import InputError
from polyreme.training.source import Tokens

_ROUNDS = 6


class Rows(Protocol):
    """Sequences by number."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def digest(self) -> str:
        """What the sequences are made from, 32 hex digits."""

    @property
    def inventory(self) -> str:
        """What was found, without reading it."""

    def num_rows(self, num_tokens: int) -> int:
        """Sequences that there are, if one has at most `num_tokens` inputs."""

    def count_targets(self, rows: Sequence[int], num_tokens: int) -> int:
        """Tokens of these sequences that have a next one to predict."""

    def read(self, row: int, num_tokens: int) -> Tokens:
        """One sequence: its inputs and, one further, its targets."""

    def hold_out(self, num_rows: int, num_tokens: int) -> "tuple[Rows, Rows]":
        """(the rest, the last `num_rows` sequences), without a token in common. InputError if there is no rest."""


@dataclass(frozen=True, slots=True)
class Permutation:
    """A shuffled order of [0, size) that `key` alone decides, one number at a time.

    A Feistel network over the cells of a rectangle that just holds `size`, walked until the result is below `size`:
    Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, sections 4 and 5. The hash takes a key of up
    to 64 bytes.
    """

    size: int
    key: bytes

    def __call__(self, number: int) -> int:
        """Which of [0, size) comes at place `number` of [0, size)."""
        height = isqrt(self.size - 1) + 1
        width = -(-self.size // height)
        while True:
            number = self._scramble(number, height, width)
            if number < self.size:
                return number

    def _scramble(self, cell: int, height: int, width: int) -> int:
        row, column = divmod(cell, width)
        for turn in range(_ROUNDS):
            if turn % 2:
                column = (column + self._noise(turn, row)) % width
            else:
                row = (row + self._noise(turn, column)) % height
        return row * width + column

    def _noise(self, turn: int, value: int) -> int:
        content = (value * _ROUNDS + turn).to_bytes(9, "little")
        return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=self.key).digest(), "little")


def epoch_order(size: int, seed: int, epoch: int) -> Permutation:
    """The order of an epoch, in which each of `size` sequences is drawn once."""
    return Permutation(size, f"{seed}/{epoch}".encode())


@dataclass(frozen=True, slots=True)
class Shuffled:
    """A `DataSource`: every sequence once an epoch, the next epoch in another order. Steps run over epochs' ends."""

    rows: Rows

    @property
    def digest(self) -> str:
        """That of the rows."""
        return self.rows.digest

    @property
    def inventory(self) -> str:
        """That of the rows."""
        return self.rows.inventory

    def count_targets(self, seed: int, step: int, num_sequences: int, num_tokens: int) -> int:
        """Tokens that count in a step. InputError if none does."""
        first = step * num_sequences
        drawn = self.rows_at(seed, range(first, first + num_sequences), num_tokens)
        targets = self.rows.count_targets(drawn, num_tokens)
        if not targets:
            problem = f"none of the {num_sequences} sequences of step {step} has a token to predict"
            raise InputError.single(self.rows.name, problem, fix="take documents without text out of the data")
        return targets

    def read_sequence(self, seed: int, step: int, sequence: int, num_sequences: int, num_tokens: int) -> Tokens:
        """Sequence number `sequence` of a step."""
        (row,) = self.rows_at(seed, range(place := step * num_sequences + sequence, place + 1), num_tokens)
        return self.rows.read(row, num_tokens)

    def rows_at(self, seed: int, positions: Sequence[int], num_tokens: int) -> list[int]:
        """Rows drawn at these positions, counted in sequences from the start of the run."""
        size = self.rows.num_rows(num_tokens)
        return [epoch_order(size, seed, position // size)(position % size) for position in positions]


@dataclass(frozen=True, slots=True)
class Fixed:
    """A `DataSource` for evaluation: the same `num_sequences` whatever the seed, spread over the rows.

    Counted like a run's: step 0 has the first ones, step 1 the next. What lies behind the last is empty.
    """

    rows: Rows
    num_sequences: int

    @property
    def digest(self) -> str:
        """That of the rows."""
        return self.rows.digest

    @property
    def inventory(self) -> str:
        """That of the rows."""
        return self.rows.inventory

    def count_targets(self, seed: int, step: int, num_sequences: int, num_tokens: int) -> int:
        """Tokens that count in a step; 0 behind the last sequence."""
        del seed
        first = step * num_sequences
        positions = range(first, min(first + num_sequences, self.num_sequences))
        return self.rows.count_targets([self._row(place, num_tokens) for place in positions], num_tokens)

    def read_sequence(self, seed: int, step: int, sequence: int, num_sequences: int, num_tokens: int) -> Tokens:
        """Sequence number `sequence` of a step."""
        del seed
        position = step * num_sequences + sequence
        if position >= self.num_sequences:
            return np.zeros(0, dtype=np.int64)
        return self.rows.read(self._row(position, num_tokens), num_tokens)

    def _row(self, position: int, num_tokens: int) -> int:
        return epoch_order(self.rows.num_rows(num_tokens), 0, 0)(position)
