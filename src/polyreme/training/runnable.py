"""What a run is made from, and whether the runtime can execute it. No torch."""

from dataclasses import dataclass
from pathlib import Path

from polyreme.catalog.fleet import Fleet, build_fleet
from polyreme.drivers.choose import CAPABILITIES
from polyreme.errors import InputError
from polyreme.layout.boundaries import transfers
from polyreme.layout.instances import instances
from polyreme.layout.owners import buckets
from polyreme.layout.requirements import required_features
from polyreme.models.coverage import uncovered
from polyreme.runtime.transports.choose import choose_transport
from polyreme.schedules.lower import lower
from polyreme.specs.cluster import ClusterSpec
from polyreme.specs.fields import Feature
from polyreme.specs.job import Batch, JobSpec
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan
from polyreme.specs.profile import ProfileSpec
from polyreme.specs.report import Report
from polyreme.training.data import vocabulary_problems
from polyreme.training.initial_weights import stored_parameters
from polyreme.training.limits import exceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a run is made from. `base` is the folder that data paths are relative to.

    `code_base` is the folder that a model's own code is relative to; None if none may be run.
    """

    plan: Plan
    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    base: Path
    profile: ProfileSpec | None = None
    prediction: Report | None = None
    code_base: Path | None = None


SUPPORTED = frozenset(
    {
        Feature.DATA_PARALLEL,
        Feature.TENSOR_PARALLEL,
        Feature.UNEQUAL_PIPELINES,
        Feature.UNEVEN_SHARE,
        Feature.TIED_EMBEDDING,
        Feature.INTERLEAVED_STAGES,
        Feature.RECOMPUTE,
        Feature.LIST_SCHEDULE,
        Feature.TRANSPORT,
    }
)
"""What the runtime executes beyond one pipeline of single-device stages."""


def check_runnable(inputs: Inputs) -> None:
    """InputError if plan, model and job are not for each other, or ask for what the runtime cannot do.

    Lowering the plan and choosing its transports here finds what does not fit before a worker starts.
    """
    plan, model, job, problems = inputs.plan, inputs.model, inputs.job, []
    missing = [feature for feature in required_features(plan, model) if feature not in SUPPORTED]
    if missing:
        problems.append(f"the plan requires {', '.join(missing)}, which this runtime does not execute yet")
    if plan.num_layers != model.num_layers + 2:
        problems.append(f"the plan covers {plan.num_layers} layers, the model has {model.num_layers + 2}")
    if plan.batch != job.batch:
        problems.append(f"the plan is for a batch of {_batch_text(plan.batch)}, the job has {_batch_text(job.batch)}")
    problems += [*uncovered(model, job.batch.tokens_per_sequence), *exceeded(plan, model)]
    problems += vocabulary_problems(job, model.vocab_size)
    precisions = {stage.precision for pipeline in plan.pipelines for stage in pipeline.stages} | {job.precision}
    fleet = build_fleet(inputs.cluster)
    for driver in sorted({fleet.device(worker).kind.driver for worker in plan.workers}):
        if driver not in CAPABILITIES:
            problems.append(f"devices of driver {driver} cannot run yet; {', '.join(sorted(CAPABILITIES))} can")
        elif not precisions <= CAPABILITIES[driver].precisions:
            known = ", ".join(sorted(CAPABILITIES[driver].precisions))
            problems.append(f"precision {', '.join(sorted(precisions))} cannot run on {driver} yet; {known} can")
    if model.code is not None and inputs.code_base is None:
        problems.append(f"the model would run {model.code}; add --allow-code if you trust it")
    if problems:
        raise InputError.single("plan", "; ".join(problems), fix="plan, explain and simulate work for it")
    lower(plan, buckets(plan, model))
    _check_edges(plan, fleet)
    if job.initial_weights is not None:
        stored_parameters(inputs.base / job.initial_weights, model)


def _batch_text(batch: Batch) -> str:
    return f"{batch.sequences} x {batch.tokens_per_sequence} tokens"


def _check_edges(plan: Plan, fleet: Fleet) -> None:
    """InputError if two devices cannot have the transport that the plan sets between them."""
    for edge in plan.edges:
        for instance in (one for one in instances(plan) if one.pipeline.name == edge.source[0]):
            for transfer in transfers(instance, edge.source[1], plan.batch.tokens_per_sequence):
                source, target = (plan.workers[rank] for rank in (transfer.source, transfer.target))
                choose_transport(fleet.device(source), fleet.device(target), edge.transport)
