"""Generators: what every place of a pipeline computes, in order, by schedule name.

A place is the stages that one set of ranks holds: one in most schedules, several in interleaved and V-shaped ones.
"""

from collections.abc import Mapping, Sequence

from polyreme.errors import InputError
from polyreme.schedules.action import Op
from polyreme.schedules.greedy import GreedyRun, Work
from polyreme.schedules.interleaved import gpipe_orders, interleaved_orders
from polyreme.specs.fields import ScheduleName
from polyreme.specs.plan import Schedule, StageTime

Places = Sequence[tuple[int, ...]]
_EQUAL = StageTime(f=1.0, i=1.0, w=1.0)
_ONE_STAGE_EACH = frozenset({ScheduleName.ONE_F_ONE_B, ScheduleName.ZB_H1, ScheduleName.ZB_H2})


def computing_orders(
    schedule: Schedule, places: Places, times: Sequence[StageTime], num_microbatches: int
) -> list[list[Work]]:
    """Order of every place. InputError where the schedule is not made for these places."""
    name, num_places, equal = schedule.name, len(places), [_EQUAL] * len(times)
    _check_places(name, places)
    if name is ScheduleName.GPIPE:
        return gpipe_orders(places, num_microbatches)
    if name is ScheduleName.ONE_F_ONE_B:
        return [_one_f_one_b(num_places, stages[0], num_microbatches) for stages in places]
    if name is ScheduleName.INTERLEAVED:
        return interleaved_orders(places, num_microbatches)
    if name is ScheduleName.ZB_H1:
        caps = [num_places] * num_places
    elif name is ScheduleName.ZB_H2:
        caps = [2 * num_places - 1] * num_places
    elif name is ScheduleName.ZB_V:
        caps = [2 * num_places] * num_places
    else:
        equal = list(times)
        held = schedule.in_flight or (num_places,) * len(times)
        caps = [sum(held[stage] for stage in stages) for stages in places]
    orders = GreedyRun(places, equal, num_microbatches, caps, split=True).orders()
    return [_join_halves(order) for order in orders]


def num_in_flight(schedule: ScheduleName, num_stages: int, stage: int, num_microbatches: int) -> int:
    """Most microbatches that `stage` holds at once: all in GPipe, the depth from it on in 1F1B. Others: `most_held`."""
    if schedule is ScheduleName.GPIPE:
        return num_microbatches
    assert schedule is ScheduleName.ONE_F_ONE_B, f"what {schedule} holds follows from its orders"
    return min(num_microbatches, num_stages - stage)


def most_held(order: Sequence[Work], weights: Mapping[int, float]) -> float:
    """Peak over an order of the weights of what is held: a stage's weight from each forward to its B or W."""
    held = peak = 0.0
    for op, stage, _ in order:
        if op is Op.FORWARD:
            held += weights[stage]
            peak = max(peak, held)
        elif op is not Op.INPUT_GRADIENT:
            held -= weights[stage]
    return peak


def _check_places(name: ScheduleName, places: Places) -> None:
    last = 2 * len(places) - 1
    if name in _ONE_STAGE_EACH and any(len(stages) > 1 for stages in places):
        problem = f"schedule {name} has one stage per worker, here a worker has {max(map(len, places))}"
        raise InputError.single("plan", problem, fix="use interleaved, zb-v or list")
    if name is ScheduleName.ZB_V and [*places] != [(place, last - place) for place in range(len(places))]:
        problem = f"schedule zb-v folds the stages once, worker i holding stages i and {last} - i; here {list(places)}"
        raise InputError.single("plan", problem, fix="use list")


def _one_f_one_b(num_stages: int, stage: int, num_microbatches: int) -> list[Work]:
    """Fill, then one forward and one backward in turn, then drain. Narayanan et al., arXiv 2006.09503, figure 2."""
    warm_up = min(num_microbatches, num_stages - stage - 1)
    order = [(Op.FORWARD, stage, number) for number in range(warm_up)]
    for number in range(num_microbatches - warm_up):
        order.append((Op.FORWARD, stage, warm_up + number))
        order.append((Op.BACKWARD, stage, number))
    order += [(Op.BACKWARD, stage, number) for number in range(num_microbatches - warm_up, num_microbatches)]
    return order


def _join_halves(order: list[Work]) -> list[Work]:
    """On the first stage I followed at once by its W is a whole backward, which costs less and delays nobody."""
    joined: list[Work] = []
    for work in order:
        if joined and work[:2] == (Op.WEIGHT_GRADIENT, 0) and joined[-1] == (Op.INPUT_GRADIENT, *work[1:]):
            joined[-1] = (Op.BACKWARD, *work[1:])
        else:
            joined.append(work)
    return joined
