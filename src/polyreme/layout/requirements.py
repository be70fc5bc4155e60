"""What a plan asks of a runtime, derived from the plan itself, so that a runtime refuses what it cannot execute."""

from collections.abc import Iterator

from polyreme.layout.instances import instances
from polyreme.specs.fields import Feature, Recompute
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan, Stage


def required_features(plan: Plan, model: ModelSpec) -> tuple[Feature, ...]:
    """Features that a plan uses, sorted by name."""
    found = {feature for p in plan.pipelines for stage in p.stages for feature in _of_stage(stage)}
    running = instances(plan)
    if len(running) > 1:
        found.add(Feature.DATA_PARALLEL)
    if len(plan.pipelines) > 1:
        found.add(Feature.UNEQUAL_PIPELINES)
    if any(p.schedule.name == "list" for p in plan.pipelines):
        found.add(Feature.LIST_SCHEDULE)
    for pipeline in plan.pipelines:
        ranks = [rank for stage in pipeline.stages for group in stage.groups for rank in group.ranks]
        if len(set(ranks)) != len(ranks):
            found.add(Feature.INTERLEAVED_STAGES)
    if len({stage.precision for p in plan.pipelines for stage in p.stages}) > 1:
        found.add(Feature.MIXED_PRECISION)
    if model.tied_embedding and any(len(p.stages) > 1 for p in plan.pipelines):
        found.add(Feature.TIED_EMBEDDING)
    if plan.edges:
        found.add(Feature.TRANSPORT)
    return tuple(sorted(found))


def _of_stage(stage: Stage) -> Iterator[Feature]:
    uses = {
        Feature.DATA_PARALLEL: len(stage.groups) > 1,
        Feature.UNEVEN_SHARE: len({group.sequences for group in stage.groups}) > 1,
        Feature.TENSOR_PARALLEL: any(group.tp > 1 for group in stage.groups),
        Feature.CONTEXT_PARALLEL: any(group.cp > 1 for group in stage.groups),
        Feature.EXPERT_PARALLEL: stage.ep > 1,
        Feature.RECOMPUTE: stage.recompute is not Recompute.NONE,
        Feature.ZERO: stage.zero > 0,
        Feature.OPTIMIZER_OFFLOAD: stage.optimizer_at != "device",
        Feature.FOREIGN_FRAMEWORK: stage.framework != "torch",
    }
    return (feature for feature, used in uses.items() if used)
