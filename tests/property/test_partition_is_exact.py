"""The partition search against brute force over every order of devices and every split."""

import itertools
import random
from collections.abc import Iterator

import pytest
from random_fleets import random_costs

from polyreme.planner.partition import Cap, PartitionSearch
from polyreme.planner.space import Space, make_groups
from polyreme.specs.fields import ScheduleName

CASES = 120


def space_of(seed: int) -> Space | None:
    draw = random.Random(f"space {seed}")  # noqa: S311
    costs = random_costs(seed)
    groups, _ = make_groups(costs, 1.0)
    if not groups:
        return None
    schedule = draw.choice([ScheduleName.GPIPE, ScheduleName.ONE_F_ONE_B])
    return Space(costs, groups, draw.choice([1, 2]), draw.choice([1, 2, 4, 8]), schedule, 1.0)


def orders(space: Space) -> Iterator[list[int]]:
    """Every sequence of groups, first stage first, that uses no group more often than it has devices."""
    sizes = [len(group.devices) for group in space.groups]
    for length in range(1, sum(sizes) + 1):
        for order in itertools.product(range(len(sizes)), repeat=length):
            if all(order.count(group) <= size for group, size in enumerate(sizes)):
                yield list(order)


def splits(num_blocks: int, num_stages: int) -> Iterator[list[int]]:
    """Blocks per stage: at least one on inner stages, any number on the ends, which have embedding or head."""
    for counts in itertools.product(range(num_blocks + 1), repeat=num_stages):
        if sum(counts) == num_blocks and all(count > 0 for count in counts[1:-1]):
            yield list(counts)


def step_of(space: Space, order: list[int], split: list[int]) -> float | None:
    """Closed form of one pipeline's step; None if memory or links forbid it. Devices are used from the end."""
    times, boundaries, taken, devices = [], [], dict.fromkeys(order, 0), []
    for position in range(len(order) - 1, -1, -1):
        group = order[position]
        devices.insert(0, space.groups[group].devices[taken[group]])
        taken[group] += 1
    for position, (group, blocks) in enumerate(zip(order, split, strict=True)):
        first, last = position == 0, position == len(order) - 1
        if blocks > space.fitting_blocks(group, len(order) - 1 - position, first=first, last=last):
            return None
        times.append(space.stage_s(group, blocks, first=first, last=last))
    for one, other in itertools.pairwise(devices):
        link = space.link(one, other)
        if link is None:
            return None
        boundaries.append((space.message_bytes / link.bandwidth_bytes_per_s, link.latency_s))
    bottleneck = max([*times, *(occupancy for occupancy, _ in boundaries)])
    total = sum(times) + sum(2 * (occupancy + latency) for occupancy, latency in boundaries)
    return (space.num_microbatches - 1) * bottleneck + total


def value_of(space: Space, order: list[int], split: list[int], prices: list[float] | None) -> float | None:
    """Step time, or price of the step."""
    step_s = step_of(space, order, split)
    if step_s is None:
        return None
    return step_s if prices is None else step_s * sum(prices[group] for group in order)


def brute_force(space: Space, prices: list[float] | None) -> float | None:
    values = (
        value_of(space, order, split, prices)
        for order in orders(space)
        for split in splits(space.num_blocks, len(order))
    )
    return min((value for value in values if value is not None), default=None)


@pytest.mark.parametrize("priced", [False, True])
def test_search_finds_the_optimum_of_brute_force(priced: bool) -> None:
    feasible = infeasible = 0
    for seed in range(CASES):
        space = space_of(seed)
        if space is None:
            continue
        prices = [group.kind.price_usd_per_hour or 0.0 for group in space.groups] if priced else None
        found, expected = PartitionSearch(space, prices).best(), brute_force(space, prices)
        if expected is None:
            assert found is None, seed
            infeasible += 1
            continue
        feasible += 1
        assert found is not None, seed
        assert found.value == pytest.approx(expected, rel=1e-9), seed
        order, split = [group for group, _, _ in found.stages], [blocks for _, _, blocks in found.stages]
        actual = value_of(space, order, split, prices)
        assert actual == pytest.approx(found.value, rel=1e-9), seed
    assert feasible > CASES // 3
    assert infeasible > 3


@pytest.mark.parametrize("priced", [False, True])
def test_search_under_a_limit_on_the_other_measure_finds_the_optimum_of_brute_force(priced: bool) -> None:
    """The least price within a time, or the least time within a price; the limit lies between the two ends."""
    bound = refused = 0
    for seed in range(CASES):
        space = space_of(seed)
        if space is None:
            continue
        rates = [group.kind.price_usd_per_hour or 0.0 for group in space.groups]
        plans = [
            (step_s, step_s * sum(rates[group] for group in order))
            for order in orders(space)
            for split in splits(space.num_blocks, len(order))
            if (step_s := step_of(space, order, split)) is not None
        ]
        if not plans:
            continue
        aim, limited = (1, 0) if priced else (0, 1)
        free = min(plans, key=lambda plan: plan[aim])[limited]
        least = min(plan[limited] for plan in plans)
        for share in (-0.5, 0.3, 0.7):
            most = (least + share * (free - least)) * (1 + 1e-9) if share > 0 else 0.9 * least
            expected = min((plan[aim] for plan in plans if plan[limited] <= most), default=None)
            cap = Cap(most, None if priced else rates)
            found = PartitionSearch(space, rates if priced else None, [cap]).best()
            if expected is None:
                assert found is None, seed
                refused += 1
                continue
            assert found is not None, seed
            assert found.value == pytest.approx(expected, rel=1e-9), seed
            bound += expected > min(plan[aim] for plan in plans) * (1 + 1e-9)
    assert bound > 20
    assert refused > 20
