"""The search: every microbatch size, exact partition for each, the best few replayed, limits applied."""

from collections.abc import Sequence
from dataclasses import dataclass

from polyreme.catalog.fleet import Device
from polyreme.errors import InputError
from polyreme.planner.assemble import Candidate, Question, assemble
from polyreme.planner.infeasible import explain_limits, explain_memory, explain_nothing_usable
from polyreme.planner.partition import Cap, Partition, PartitionSearch
from polyreme.planner.space import Group, LeftOut, Space, linked, make_groups, microbatch_sizes
from polyreme.specs.fields import Objective, ScheduleName
from polyreme.units import HOUR_S

FINALISTS = 3
"""Candidates whose order is decided by replay: the closed form leaves out how messages and unequal stages interlock."""

SEARCHED = (ScheduleName.ONE_F_ONE_B, ScheduleName.GPIPE)
"""Schedules whose memory follows from the stages behind a stage, which the partition search needs to know."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan, the other finalists in order, and the devices that could not take part."""

    best: Candidate
    others: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]


def search(question: Question) -> Found:
    """The best plan of the space. InfeasibleError says which limit binds; InputError if a figure is missing."""
    if question.schedule not in SEARCHED:
        raise InputError.single(
            "job",
            f"plans with schedule {question.schedule} are not searched yet",
            path="schedule",
            fix=f"use {' or '.join(SEARCHED)}, or write the schedule into a plan",
        )
    groups, left_out = make_groups(question.costs, question.job.limits.memory_fraction)
    if not groups:
        raise explain_nothing_usable(question, left_out)
    fitting = _ranked(question, groups)
    if not fitting:
        raise explain_memory(question, groups, left_out)
    if question.job.limits.cost_per_step_usd is not None:
        _rates(groups, Objective.COST)
    allowed = [candidate for candidate in fitting if within_limits(question, candidate)]
    if not allowed or allowed[0] is not fitting[0]:
        tried = _limited(question, groups)
        allowed = _sorted(question, [candidate for candidate in tried if within_limits(question, candidate)])
        if not allowed:
            raise explain_limits(question.job.limits, [*fitting, *tried])
    return Found(allowed[0], tuple(allowed[1:FINALISTS]), left_out)


def best_on(question: Question, groups: tuple[Group, ...]) -> Candidate | None:
    """The best plan that uses devices of `groups` only, within the limits if one is; None if none fits memory."""
    fitting = _ranked(question, groups)
    return next((one for one in fitting if within_limits(question, one)), next(iter(fitting), None))


def _limited(question: Question, groups: tuple[Group, ...]) -> list[Candidate]:
    """Candidates for a job whose best plan breaks a limit: the best of its objective under the limits, and the ends
    of what can be reached, the fastest and the cheapest plans, each with and without the other's limit."""
    limits = question.job.limits
    caps, objectives = [], [Objective.TIME]
    if limits.step_time_s is not None:
        caps.append(Cap(limits.step_time_s))
    if limits.cost_per_step_usd is not None:
        caps.append(Cap(limits.cost_per_step_usd * HOUR_S, _rates(groups, Objective.COST)))
        objectives.append(Objective.COST)
    found = _ranked(question, groups, caps=caps)
    for objective in objectives:
        found += _ranked(question, groups, objective)
        for cap in caps:
            found += _ranked(question, groups, objective, [cap])
    return found


def within_limits(question: Question, candidate: Candidate) -> bool:
    """Whether a plan keeps to the job's limits on time and cost."""
    limits, report = question.job.limits, candidate.simulation.report
    cost = report.cost_per_step_usd
    return (limits.step_time_s is None or report.step_time_s[1] <= limits.step_time_s) and (
        limits.cost_per_step_usd is None or (cost is not None and cost <= limits.cost_per_step_usd)
    )


def _ranked(
    question: Question, groups: tuple[Group, ...], objective: Objective | None = None, caps: Sequence[Cap] = ()
) -> list[Candidate]:
    """The best few plans over `groups` that fit, best first by replay; the job's objective unless another is given."""
    objective = objective or question.job.objective
    partitions = _partitions(question, groups, objective, caps)
    finalists = [assemble(question, stages, sequences) for _, sequences, stages in partitions[:FINALISTS]]
    return _sorted(question, [candidate for candidate in finalists if candidate.unfit is None], objective)


def _sorted(question: Question, candidates: list[Candidate], objective: Objective | None = None) -> list[Candidate]:
    goal = objective or question.job.objective
    return sorted(candidates, key=lambda candidate: value_of(goal, candidate))


def _partitions(
    question: Question, groups: tuple[Group, ...], objective: Objective, caps: Sequence[Cap]
) -> list[tuple[float, int, list[tuple[Device, range]]]]:
    """(value, microbatch size, stages) of the best partition of each size and set of linked devices, best first."""
    found: list[tuple[float, int, list[tuple[Device, range]]]] = []
    to_beat = float("inf")
    fraction = question.job.limits.memory_fraction
    for members in linked(question.costs, groups):
        prices = _rates(members, objective)
        own_caps = [cap if cap.prices is None else Cap(cap.most, _rates(members, Objective.COST)) for cap in caps]
        for sequences in microbatch_sizes(question.job.batch.sequences):
            num_microbatches = question.job.batch.sequences // sequences
            space = Space(question.costs, members, sequences, num_microbatches, question.schedule, fraction)
            best = PartitionSearch(space, prices, own_caps).best(to_beat * _NEAR)
            if best is not None:
                found.append((best.value, sequences, _stages(members, best)))
                to_beat = min(to_beat, best.value)
    return sorted(found, key=lambda one: one[0])


_NEAR = 1.1
"""A microbatch size whose closed form is more than this factor behind the best is not replayed."""


def _stages(groups: tuple[Group, ...], partition: Partition) -> list[tuple[Device, range]]:
    stages, start = [], 0
    for number, (group, position, blocks) in enumerate(partition.stages):
        stop = start + blocks + (number == 0) + (number == len(partition.stages) - 1)
        stages.append((groups[group].devices[position], range(start, stop)))
        start = stop
    return stages


def _rates(groups: tuple[Group, ...], objective: Objective) -> list[float] | None:
    """What one second of a device of each group costs by the objective; None for time."""
    if objective is Objective.TIME:
        return None
    cost = objective is Objective.COST
    values = [group.kind.price_usd_per_hour if cost else group.kind.tdp_w for group in groups]
    missing = [group.kind.name for group, value in zip(groups, values, strict=True) if value is None]
    if missing:
        key = "price_usd_per_hour" if cost else "tdp_w"
        problem = f"an objective or limit of {objective} needs {key} of {', '.join(missing)}"
        raise InputError.single("cluster", problem, fix=f"add {key} in the cluster file")
    return [value or 0.0 for value in values]


def value_of(objective: Objective, candidate: Candidate) -> float:
    """What a plan is worth, less is better: seconds, dollars or joules of a step. Infinite where that is not known."""
    report = candidate.simulation.report
    known = {
        Objective.TIME: report.step_time_s[1],
        Objective.COST: report.cost_per_step_usd,
        Objective.ENERGY: report.energy_per_step_j,
    }[objective]
    return float("inf") if known is None else known
