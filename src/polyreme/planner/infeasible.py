"""Why nothing fits: which limit binds, by how much, and changes that were checked to fit."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from polyreme.catalog.fleet import Device
from polyreme.costs.memory import stage_parameters, state_bytes
from polyreme.costs.model import CostModel
from polyreme.errors import InfeasibleError, InputError
from polyreme.layout.layers import num_layers
from polyreme.planner.assemble import Candidate, Question
from polyreme.planner.partition import PartitionSearch
from polyreme.planner.space import Group, LeftOut, Space, linked
from polyreme.specs.job import Limits
from polyreme.units import format_bytes, format_time_s

_MORE_DEVICES = 64


def explain_nothing_usable(question: Question, left_out: tuple[LeftOut, ...]) -> InfeasibleError:
    """No kind of device can take part at all."""
    reasons = [f"{one.num_devices} x {one.kind}: {one.reason}" for one in left_out]
    precision = all("does not compute" in one.reason for one in left_out)
    return InfeasibleError(
        "no device of the cluster can take part\n" + "\n".join(f"  {reason}" for reason in reasons),
        limit=f"precision {question.costs.precision}" if precision else "device memory",
        shortfall="all devices",
        changes=["another precision in the job, or other devices"] if precision else ["devices with more memory"],
    )


def explain_memory(question: Question, groups: tuple[Group, ...], left_out: tuple[LeftOut, ...]) -> InfeasibleError:
    """The model does not fit: needed against usable memory, and the nearest changes, each tried."""
    costs, limits = question.costs, question.job.limits
    devices = [device for group in groups for device in group.devices]
    usable = sum(device.kind.memory_bytes for device in devices) * limits.memory_fraction
    state = state_bytes(stage_parameters(costs.model, range(num_layers(costs.model))), costs.precision)
    needed = sum(state.values())
    parts = ", ".join(f"{part.replace('_', ' ')} {format_bytes(size)}" for part, size in state.items())
    lines = [
        f"{costs.model.name} does not fit the memory of {len(devices)} devices",
        f"  needed: {format_bytes(needed)} ({parts}), activations not counted",
        f"  usable: {format_bytes(usable)}, {limits.memory_fraction:.0%} of each device",
        *(f"  left out: {one.num_devices} x {one.kind}: {one.reason}" for one in left_out),
    ]
    shortfall = (
        format_bytes(needed - usable) if needed > usable else "the activations in flight, or by links that are missing"
    )
    changes = [*_more_devices(question, groups), *_job_changes(question, groups)]
    host = sum(costs.fleet.host_memory_bytes.values())
    offload = state["optimizer"] + state.get("master_weights", 0.0)
    if host >= offload and needed - offload <= usable:
        changes.append(
            f"optimizer state on the host: {format_bytes(offload)} of {format_bytes(host)} host memory "
            "(not in this planner's space yet)"
        )
    return InfeasibleError("\n".join(lines), limit="device memory", shortfall=shortfall, changes=changes)


def explain_limits(limits: Limits, tried: Sequence[Candidate]) -> InfeasibleError:
    """Plans fit, but none of `tried` keeps to the limits on time and cost. The changes are figures of plans found."""
    points = [(one.step_time_s, one.simulation.report.cost_per_step_usd or 0.0) for one in tried]
    time_limit, cost_limit = limits.step_time_s or math.inf, limits.cost_per_step_usd or math.inf
    times = [time_s for time_s, cost in points if cost <= cost_limit]
    costs = [cost for time_s, cost in points if time_s <= time_limit]
    changes = [f"limits.step_time_s: {_rounded_up(min(times))}"] if times else []
    changes += [f"limits.cost_per_step_usd: {_rounded_up(min(costs))}"] if costs else []
    if not changes:
        time_s, cost = min(points)
        changes = [f"limits.step_time_s: {_rounded_up(time_s)} with limits.cost_per_step_usd: {_rounded_up(cost)}"]
    fastest, cheapest = min(time_s for time_s, _ in points), min(cost for _, cost in points)
    if fastest > time_limit or (times and not costs):
        head, name, over = f"the fastest plan takes {format_time_s(fastest)} a step", "limits.step_time_s", fastest
        return InfeasibleError(head, limit=name, shortfall=format_time_s(over - time_limit), changes=changes)
    least = cheapest if cheapest > cost_limit else min(costs)
    within = "" if cheapest > cost_limit else f" within {format_time_s(time_limit)}"
    head = f"the cheapest plan{within} costs ${least:.4g} a step"
    shortfall = f"${least - cost_limit:.4g}"
    return InfeasibleError(head, limit="limits.cost_per_step_usd", shortfall=shortfall, changes=changes)


def _rounded_up(value: float) -> str:
    """Four digits, never below the value: a limit that is offered must hold."""
    text = f"{value:.4g}"
    if float(text) < value:
        text = f"{value + 10 ** (math.floor(math.log10(value)) - 3):.4g}"
    return text


def _more_devices(question: Question, groups: tuple[Group, ...]) -> Iterator[str]:
    """Fewest further devices of each kind with which it fits."""
    for index, group in enumerate(groups):

        def fits(extra: int, index: int = index, group: Group = group) -> bool:
            pattern = group.devices[-1]
            added = tuple(Device(f"{pattern.name}+{number}", pattern.node, pattern.kind) for number in range(extra))
            grown = Group(group.kind, group.devices + added)
            return _holds(question, (*groups[:index], grown, *groups[index + 1 :]), question.costs)

        extra = _least(fits, _MORE_DEVICES)
        if extra is not None:
            yield f"{extra} more {group.kind.name}"


def _job_changes(question: Question, groups: tuple[Group, ...]) -> Iterator[str]:
    costs = question.costs
    if question.job.limits.memory_fraction < 1 and _holds(question, groups, costs, 1.0):
        yield "limits.memory_fraction: 1.0"
    tokens = costs.tokens_per_sequence
    halvings = _least(
        lambda times: _holds(question, groups, _with(costs, tokens_per_sequence=tokens >> times)),
        tokens.bit_length() - 1,
    )
    if halvings is not None:
        yield f"batch.tokens_per_sequence: {tokens >> halvings}"
    blocks = costs.model.num_layers
    fewer = _least(lambda less: _holds(question, groups, _with_blocks(costs, blocks - less)), blocks - 1)
    if fewer is not None:
        yield f"a model of {blocks - fewer} layers instead of {blocks}"


def _holds(question: Question, groups: tuple[Group, ...], costs: CostModel, fraction: float | None = None) -> bool:
    """Whether any partition fits memory and links at the smallest microbatch."""
    limit = question.job.limits.memory_fraction if fraction is None else fraction
    sequences = question.job.batch.sequences
    spaces = (Space(costs, members, 1, sequences, question.schedule, limit) for members in linked(costs, groups))
    try:
        return any(PartitionSearch(space).can_hold() for space in spaces)
    except InputError:  # only a profile times these devices, and it does not know this change
        return False


def _with(costs: CostModel, *, tokens_per_sequence: int) -> CostModel:
    return CostModel(costs.model, costs.fleet, costs.precision, tokens_per_sequence, costs.profile)


def _with_blocks(costs: CostModel, num_blocks: int) -> CostModel:
    model = dataclasses.replace(costs.model, num_layers=num_blocks)
    return CostModel(model, costs.fleet, costs.precision, costs.tokens_per_sequence, costs.profile)


def _least(holds: Callable[[int], bool], most: int) -> int | None:
    """Least n in 1..most for which a property that stays true holds; None if it never does."""
    if most < 1 or not holds(most):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
