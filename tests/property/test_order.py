"""Every sequence once an epoch, in an order that only seed and epoch decide."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyreme.training.order import Permutation, Shuffled, epoch_order
from polyreme.training.source import Tokens


class Numbers:
    """Rows that hold their own number, and one target each."""

    name, digest, inventory = "numbers", "d", "i"

    def __init__(self, size: int) -> None:
        self.size = size

    def num_rows(self, num_tokens: int) -> int:
        return self.size

    def count_targets(self, rows: Sequence[int], num_tokens: int) -> int:
        return len(rows)

    def read(self, row: int, num_tokens: int) -> Tokens:
        return np.array([row, row])

    def hold_out(self, num_rows: int, num_tokens: int) -> "tuple[Numbers, Numbers]":
        raise NotImplementedError


@settings(max_examples=150, deadline=None, derandomize=True)
@given(size=st.integers(1, 700), seed=st.integers(0, 10**15), epoch=st.integers(0, 10**9))
def test_an_epochs_order_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    order = epoch_order(size, seed, epoch)
    assert sorted(order(number) for number in range(size)) == list(range(size))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(size=st.integers(1, 10**18), key=st.binary(min_size=1, max_size=64), data=st.data())
def test_numbers_of_a_huge_permutation_stay_in_range_and_apart(size: int, key: bytes, data: st.DataObject) -> None:
    numbers = data.draw(st.sets(st.integers(0, size - 1), max_size=30))
    order = Permutation(size, key)
    images = {order(number) for number in numbers}
    assert len(images) == len(numbers)
    assert all(0 <= image < size for image in images)


def test_orders_differ_by_seed_and_epoch_and_look_shuffled() -> None:
    orders = [[epoch_order(500, *key)(n) for n in range(500)] for key in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for index, order in enumerate(orders):
        assert order not in orders[:index]
        assert sum(a == b for a, b in enumerate(order)) < 10, "about one number stays where it is"
        assert sum(abs(a - b) == 1 for a, b in pairwise(order)) < 15, "about two neighbours stay"
        assert abs(np.corrcoef(range(500), order)[0, 1]) < 0.2


def test_every_number_is_as_likely_at_every_place() -> None:
    size, epochs = 12, 3000
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        order = epoch_order(size, 7, epoch)
        for number in range(size):
            counts[number, order(number)] += 1
    expected = epochs / size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 200, "121 degrees of freedom: 200 is five standard deviations above the mean"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(1, 60), batch=st.integers(1, 25), other=st.integers(1, 25), seed=st.integers(0, 9))
def test_each_row_is_drawn_once_an_epoch_whatever_the_batch(size: int, batch: int, other: int, seed: int) -> None:
    source = Shuffled(Numbers(size))

    def drawn(num_sequences: int) -> list[int]:
        steps = -(-3 * size // num_sequences)
        places = [(step, sequence) for step in range(steps) for sequence in range(num_sequences)]
        read = [int(source.read_sequence(seed, step, s, num_sequences, 8)[0]) for step, s in places]
        return read[: 3 * size]

    rows = drawn(batch)
    for epoch in range(3):
        assert sorted(rows[epoch * size : (epoch + 1) * size]) == list(range(size))
    assert drawn(other) == rows, "a position alone says what is drawn there"
