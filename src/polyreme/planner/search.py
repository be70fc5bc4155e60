"""The search: every microbatch size, exact partition for each, the best few replayed, limits applied."""

from dataclasses import dataclass

from polyreme.catalog.fleet import Device
from polyreme.errors import InfeasibleError, InputError
from polyreme.planner.assemble import Candidate, Question, assemble
from polyreme.planner.infeasible import explain_memory, explain_nothing_usable
from polyreme.planner.partition import Partition, PartitionSearch
from polyreme.planner.space import Group, LeftOut, Space, make_groups, microbatch_sizes
from polyreme.specs.fields import Objective
from polyreme.specs.report import Report
from polyreme.units import format_time_s

FINALISTS = 3
"""Candidates whose order is decided by replay: the closed form leaves out how messages and unequal stages interlock."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan, the other finalists in order, and the devices that could not take part."""

    best: Candidate
    others: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]


def search(question: Question) -> Found:
    """The best plan of the space. InfeasibleError says which limit binds; InputError if a figure is missing."""
    groups, left_out = make_groups(question.costs, question.job.limits.memory_fraction)
    if not groups:
        raise explain_nothing_usable(question, left_out)
    fitting = _ranked(question, groups)
    if not fitting:
        raise explain_memory(question, groups, left_out)
    _check_limits(question, fitting[0])
    return Found(fitting[0], tuple(fitting[1:]), left_out)


def best_on(question: Question, groups: tuple[Group, ...]) -> Candidate | None:
    """The best plan that uses devices of `groups` only; None if none fits."""
    return next(iter(_ranked(question, groups)), None)


def _ranked(question: Question, groups: tuple[Group, ...]) -> list[Candidate]:
    """The best few plans over `groups` that fit, best first by replay."""
    partitions = _partitions(question, groups, _prices(question, groups))
    finalists = [assemble(question, _stages(groups, one), sequences) for sequences, one in partitions[:FINALISTS]]
    return sorted(
        (candidate for candidate in finalists if candidate.unfit is None),
        key=lambda candidate: _value(question, candidate.simulation.report),
    )


def _partitions(
    question: Question, groups: tuple[Group, ...], prices: list[float] | None
) -> list[tuple[int, Partition]]:
    """(microbatch size, best partition), best first."""
    found: list[tuple[int, Partition]] = []
    to_beat = float("inf")
    for sequences in microbatch_sizes(question.job.batch.sequences):
        num_microbatches = question.job.batch.sequences // sequences
        fraction = question.job.limits.memory_fraction
        space = Space(question.costs, groups, sequences, num_microbatches, question.schedule, fraction)
        best = PartitionSearch(space, prices).best(to_beat * _NEAR)
        if best is not None:
            found.append((sequences, best))
            to_beat = min(to_beat, best.value)
    return sorted(found, key=lambda one: one[1].value)


_NEAR = 1.1
"""A microbatch size whose closed form is more than this factor behind the best is not replayed."""


def _stages(groups: tuple[Group, ...], partition: Partition) -> list[tuple[Device, range]]:
    stages, start = [], 0
    for number, (group, position, blocks) in enumerate(partition.stages):
        stop = start + blocks + (number == 0) + (number == len(partition.stages) - 1)
        stages.append((groups[group].devices[position], range(start, stop)))
        start = stop
    return stages


def _prices(question: Question, groups: tuple[Group, ...]) -> list[float] | None:
    """What one second of a device of each group costs by the objective; None for time."""
    if question.job.objective is Objective.TIME:
        return None
    cost = question.job.objective is Objective.COST
    values = [group.kind.price_usd_per_hour if cost else group.kind.tdp_w for group in groups]
    missing = [group.kind.name for group, value in zip(groups, values, strict=True) if value is None]
    if missing:
        key = "price_usd_per_hour" if cost else "tdp_w"
        problem = f"objective {question.job.objective} needs {key} of {', '.join(missing)}"
        raise InputError.single("cluster", problem, fix=f"add {key} in the cluster file")
    return [value or 0.0 for value in values]


def _value(question: Question, report: Report) -> float:
    values = {
        Objective.TIME: report.step_time_s[1],
        Objective.COST: report.cost_per_step_usd,
        Objective.ENERGY: report.energy_per_step_j,
    }
    value = values[question.job.objective]
    assert value is not None
    return value


def _check_limits(question: Question, best: Candidate) -> None:
    limits, report = question.job.limits, best.simulation.report
    if limits.step_time_s is not None and report.step_time_s[1] > limits.step_time_s:
        over = report.step_time_s[1] - limits.step_time_s
        raise InfeasibleError(
            f"the best plan takes {format_time_s(report.step_time_s[1])} a step",
            limit="limits.step_time_s",
            shortfall=format_time_s(over),
            changes=[f"limits.step_time_s: {report.step_time_s[1]:.4g}", "more or faster devices"],
        )
    cost = report.cost_per_step_usd
    if limits.cost_per_step_usd is not None and cost is None:
        raise InputError.single("job", "limits.cost_per_step_usd needs the price of every device", fix="add prices")
    if limits.cost_per_step_usd is not None and cost is not None and cost > limits.cost_per_step_usd:
        raise InfeasibleError(
            f"the best plan for objective {question.job.objective} costs ${cost:.4g} a step",
            limit="limits.cost_per_step_usd",
            shortfall=f"${cost - limits.cost_per_step_usd:.4g}",
            changes=[f"limits.cost_per_step_usd: {cost:.4g}", "objective: cost"],
        )
