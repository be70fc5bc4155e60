"""Sums over owners whose devices do not share a backend: inside each island, between leaders, back to all."""

from collections import defaultdict

import torch
from reduction_worker import BACKENDS, OWNERS, reduction_main, values

from polyreme.runtime.launch import Failure, Workers


def sums() -> dict[int, dict[int, list[float]]]:
    found: dict[int, dict[int, list[float]]] = defaultdict(dict)
    with Workers(reduction_main, [{} for _ in BACKENDS], "polyreme.training.preload") as workers:
        for heard in workers.messages():
            assert not isinstance(heard, Failure), heard.message
            rank, message = heard
            found[message["bucket"]][rank] = message["values"]
    return found


def test_every_owner_gets_the_same_sum_bit_for_bit_every_time() -> None:
    first, second = sums(), sums()
    assert first == second
    for number, owners in enumerate(OWNERS):
        assert set(first[number]) == set(owners)
        of_owners = [torch.tensor(first[number][rank]) for rank in owners]
        assert all(torch.equal(of_owners[0], other) for other in of_owners)
        due = sum(values(rank, number).double() for rank in owners)
        assert torch.allclose(of_owners[0].double(), due, rtol=1e-5, atol=1e-6)
