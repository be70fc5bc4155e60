"""What people do without a planner, scored by the same replay: the numbers that a plan has to beat."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyreme.catalog.fleet import Device
from polyreme.errors import InputError
from polyreme.layout.layers import num_layers
from polyreme.layout.owners import interval
from polyreme.planner.assemble import Candidate, Question, assemble
from polyreme.planner.search import best_on
from polyreme.planner.space import Group, describe, make_groups


@dataclass(frozen=True, slots=True)
class Baseline:
    """One alternative. `candidate` is None where it does not fit, for the reason in `problem`."""

    name: str
    devices: str
    candidate: Candidate | None
    problem: str | None = None


def baselines(question: Question, microbatch_sequences: int) -> tuple[Baseline, ...]:
    """Equal split and speed-proportional split over all usable devices, with the plan's microbatch size, and the best
    plan over devices of one kind only."""
    groups, _ = make_groups(question.costs, question.job.limits.memory_fraction)
    devices = [device for group in groups for device in group.devices]
    total = num_layers(question.costs.model)
    devices = devices[:total]
    equal = [interval(total, len(devices), index) for index in range(len(devices))]
    shares = proportional(question, devices, microbatch_sequences)
    return (
        _split(question, "equal split", devices, equal, microbatch_sequences),
        _split(question, "speed-proportional", devices, shares, microbatch_sequences),
        _homogeneous(question, groups),
    )


def proportional(question: Question, devices: Sequence[Device], sequences: int) -> list[tuple[int, int]]:
    """Layer intervals in proportion to each device's speed on a block, at least one each: largest remainders first."""
    total = num_layers(question.costs.model)
    speeds = [1 / question.costs.layer(device.kind, 1, sequences).total_s for device in devices]
    ideal = [total * speed / sum(speeds) for speed in speeds]
    counts = [max(1, int(share)) for share in ideal]
    while sum(counts) < total:
        counts[max(range(len(counts)), key=lambda index: ideal[index] - counts[index])] += 1
    while sum(counts) > total:
        above_one = [index for index, count in enumerate(counts) if count > 1]
        counts[min(above_one, key=lambda index: ideal[index] - counts[index])] -= 1
    starts = [sum(counts[:index]) for index in range(len(counts))]
    return [(start, start + count) for start, count in zip(starts, counts, strict=True)]


def _split(
    question: Question, name: str, devices: Sequence[Device], intervals: Sequence[tuple[int, int]], sequences: int
) -> Baseline:
    stages = [(device, range(*layers)) for device, layers in zip(devices, intervals, strict=True)]
    return _tried(name, describe(devices), lambda: assemble(question, stages, sequences))


def _homogeneous(question: Question, groups: tuple[Group, ...]) -> Baseline:
    found = [(group, best_on(question, (group,))) for group in groups]
    fitting = [(group, candidate) for group, candidate in found if candidate is not None]
    if not fitting:
        return Baseline("best homogeneous", "-", None, "no single kind of device holds the model")
    _, best = min(fitting, key=lambda one: one[1].step_time_s)
    used = [question.costs.fleet.device(worker) for worker in best.plan.workers]
    return Baseline("best homogeneous", describe(used), best)


def _tried(name: str, devices: str, make: Callable[[], Candidate]) -> Baseline:
    try:
        candidate = make()
    except InputError as error:
        return Baseline(name, devices, None, error.faults[0].problem)
    if candidate.unfit is not None:
        return Baseline(name, devices, None, candidate.unfit)
    return Baseline(name, devices, candidate)
