"""Lowering: from the computing order of each stage to everything a worker does, messages and update included."""

from functools import lru_cache

from polyreme.errors import InputError
from polyreme.layout.instances import PipelineInstance, instances, stages_of
from polyreme.layout.owners import Bucket
from polyreme.schedules.action import Action, Op
from polyreme.schedules.generate import stage_order
from polyreme.specs.fields import ScheduleName
from polyreme.specs.plan import Plan


def lower(plan: Plan, buckets: tuple[Bucket, ...]) -> dict[int, list[Action]]:
    """Action list of every rank of a plan for one step. InputError for a schedule that cannot be generated."""
    lists: dict[int, list[Action]] = {rank: [] for rank in range(len(plan.workers))}
    for instance in instances(plan):
        for stage in range(instance.num_stages):
            computing = _stage_actions(instance, stage)
            for rank in instance.ranks(stage):
                if lists[rank]:
                    held = [(one.name, number) for one, number in stages_of(plan, rank)]
                    problem = f"rank {rank} holds several stages: {held}"
                    raise InputError.single("plan", problem, fix="give every worker one stage")
                lists[rank] = list(computing)
    for index, bucket in enumerate(buckets):
        for rank in bucket.owners:
            lists[rank].append(Action(Op.REDUCE, stage=index))
    for actions in lists.values():
        actions.append(Action(Op.STEP))
    return lists


def _stage_actions(instance: PipelineInstance, stage: int) -> tuple[Action, ...]:
    pipeline = instance.pipeline
    if pipeline.schedule.name == "list":
        raise InputError.single("plan", "schedule list is not supported yet", path=f"pipelines.{pipeline.name}")
    return _with_messages(pipeline.schedule.name, instance.name, instance.num_stages, stage, pipeline.microbatches)


@lru_cache(maxsize=256)
def _with_messages(
    schedule: ScheduleName, name: str, num_stages: int, stage: int, num_microbatches: int
) -> tuple[Action, ...]:
    """A stage's computes with the messages between them. Kept: a search lowers many plans of one depth."""
    first, last = stage == 0, stage == num_stages - 1
    actions: list[Action] = []
    for op, microbatch in stage_order(schedule, num_stages, stage, num_microbatches):
        forward = op is Op.FORWARD
        if not (first if forward else last):
            receive = Op.RECV_ACTIVATION if forward else Op.RECV_GRADIENT
            actions.append(Action(receive, name, stage, microbatch))
        actions.append(Action(op, name, stage, microbatch))
        if not (last if forward else first):
            send = Op.SEND_ACTIVATION if forward else Op.SEND_GRADIENT
            actions.append(Action(send, name, stage, microbatch))
    return tuple(actions)
