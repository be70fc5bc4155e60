"""From stages on devices to a whole plan, and its replay: the one way in which every candidate is scored."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyreme.catalog.fleet import Device
from polyreme.costs.model import CostModel
from polyreme.layout.requirements import required_features
from polyreme.simulator.simulate import Simulation, simulate
from polyreme.specs.fields import Precision, ScheduleName
from polyreme.specs.io import CREATED_BY, digest
from polyreme.specs.job import JobSpec
from polyreme.specs.plan import Group, Inputs, Pipeline, Plan, Predicted, Schedule, Stage
from polyreme.units import format_bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan and its replayed step. `unfit` says which device would hold too much, if any."""

    plan: Plan
    simulation: Simulation
    unfit: str | None

    @property
    def step_time_s(self) -> float:
        """Predicted step time."""
        return self.simulation.report.step_time_s[1]


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned: the job, its cost model, and the digests of what they were read from."""

    job: JobSpec
    costs: CostModel
    inputs: Inputs

    @property
    def schedule(self) -> ScheduleName:
        """1F1B unless the job pins another."""
        return self.job.schedule or ScheduleName.ONE_F_ONE_B


def assemble(question: Question, stages: Sequence[tuple[Device, range]], sequences: int) -> Candidate:
    """One pipeline over `stages` with microbatches of `sequences`, replayed. InputError if neighbours have no link."""
    job, costs = question.job, question.costs
    pipeline = Pipeline(
        name="a",
        microbatches=job.batch.sequences // sequences,
        microbatch_sequences=sequences,
        schedule=Schedule(name=question.schedule),
        stages=tuple(
            Stage(
                layers=(layers.start, layers.stop),
                groups=(Group(ranks=(rank,), sequences=sequences),),
                precision=Precision(costs.precision),
                time_s=costs.stage_time(device.kind, layers, sequences),
            )
            for rank, (device, layers) in enumerate(stages)
        ),
    )
    plan = Plan(
        created_by=CREATED_BY,
        inputs=question.inputs,
        batch=job.batch,
        workers=tuple(device.name for device, _ in stages),
        pipelines=(pipeline,),
        predicted=Predicted(step_time_s=(0.0, 0.0, 0.0)),
    )
    plan = dataclasses.replace(plan, requires=required_features(plan, costs.model))
    simulation = simulate(plan, costs, job.limits.memory_fraction)
    plan = dataclasses.replace(plan, predicted=Predicted(step_time_s=simulation.report.step_time_s))
    return Candidate(dataclasses.replace(plan, digest=digest(plan)), simulation, _unfit(simulation))


def _unfit(simulation: Simulation) -> str | None:
    for worker in simulation.report.workers:
        needed = sum(worker.memory_bytes.values())
        if needed > worker.memory_limit_bytes:
            return f"{worker.worker} would hold {format_bytes(needed)} of {format_bytes(worker.memory_limit_bytes)}"
    return None
