"""Generators: the order of forwards and backwards of one stage, by schedule name."""

from polyreme.schedules.action import Op
from polyreme.specs.fields import ScheduleName

StageOrder = list[tuple[Op, int]]
"""(FORWARD | BACKWARD, microbatch) in execution order."""


def stage_order(schedule: ScheduleName, num_stages: int, stage: int, num_microbatches: int) -> StageOrder:
    """What `stage` of `num_stages` computes, in order, for `num_microbatches`."""
    if schedule is ScheduleName.GPIPE:
        return _gpipe(num_microbatches)
    return _one_f_one_b(num_stages, stage, num_microbatches)


def num_in_flight(schedule: ScheduleName, num_stages: int, stage: int, num_microbatches: int) -> int:
    """Most microbatches whose activations `stage` holds at once: all in GPipe, the depth below it in 1F1B."""
    if schedule is ScheduleName.GPIPE:
        return num_microbatches
    return min(num_microbatches, num_stages - stage)


def _gpipe(num_microbatches: int) -> StageOrder:
    """All forwards, then all backwards. Huang et al., arXiv 1811.06965, figure 2c."""
    forwards = [(Op.FORWARD, microbatch) for microbatch in range(num_microbatches)]
    return forwards + [(Op.BACKWARD, microbatch) for microbatch in range(num_microbatches)]


def _one_f_one_b(num_stages: int, stage: int, num_microbatches: int) -> StageOrder:
    """Fill, then one forward and one backward in turn, then drain. Narayanan et al., arXiv 2006.09503, figure 2."""
    warm_up = min(num_microbatches, num_stages - stage - 1)
    order: StageOrder = [(Op.FORWARD, microbatch) for microbatch in range(warm_up)]
    for microbatch in range(num_microbatches - warm_up):
        order.append((Op.FORWARD, warm_up + microbatch))
        order.append((Op.BACKWARD, microbatch))
    order += [(Op.BACKWARD, microbatch) for microbatch in range(num_microbatches - warm_up, num_microbatches)]
    return order
