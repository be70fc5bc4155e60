"""Lowering: from the computing order of each place to everything a worker does, messages and update included."""

from collections.abc import Sequence
from functools import lru_cache

from polyreme.layout.instances import PipelineInstance, instances
from polyreme.layout.owners import Bucket
from polyreme.schedules.action import Action, Op
from polyreme.schedules.generate import computing_orders
from polyreme.schedules.greedy import Work
from polyreme.specs.plan import Plan, Schedule, StageTime


def lower(plan: Plan, buckets: tuple[Bucket, ...]) -> dict[int, list[Action]]:
    """Action list of every rank of a plan for one step. InputError for a schedule that its stages do not fit."""
    lists: dict[int, list[Action]] = {rank: [] for rank in range(len(plan.workers))}
    for instance in instances(plan):
        places = instance.places()
        for (_, ranks), computing in zip(places, _place_actions(instance), strict=True):
            for rank in ranks:
                lists[rank] = list(computing)
    for index, bucket in enumerate(buckets):
        for rank in bucket.owners:
            lists[rank].append(Action(Op.REDUCE, stage=index))
    for actions in lists.values():
        actions += [Action(Op.NORM), Action(Op.STEP)]
    return lists


def forward_only(actions: Sequence[Action]) -> list[Action]:
    """The forwards of a rank's list and their messages, in order: its part of an evaluation."""
    return [a for a in actions if a.op in (Op.FORWARD, Op.SEND_ACTIVATION, Op.RECV_ACTIVATION)]


def _place_actions(instance: PipelineInstance) -> tuple[tuple[Action, ...], ...]:
    pipeline = instance.pipeline
    listed = pipeline.schedule.name == "list"
    times = tuple(stage.time_s for stage in pipeline.stages) if listed else ()
    places = tuple(stages for stages, _ in instance.places())
    return _lowered(pipeline.schedule, instance.name, places, times, pipeline.microbatches)


@lru_cache(maxsize=256)
def _lowered(
    schedule: Schedule,
    name: str,
    places: tuple[tuple[int, ...], ...],
    times: tuple[StageTime, ...],
    num_microbatches: int,
) -> tuple[tuple[Action, ...], ...]:
    """Every place's computes with the messages between them. Kept: a search lowers many plans of one depth."""
    num_stages = sum(map(len, places))
    known = times or (StageTime(f=1.0, i=1.0, w=1.0),) * num_stages
    orders = computing_orders(schedule, places, known, num_microbatches)
    return tuple(with_messages(order, name, num_stages - 1) for order in orders)


def with_messages(order: Sequence[Work], name: str, last: int) -> tuple[Action, ...]:
    """A place's computes in pipeline `name`, whose last stage is `last`, with the messages between them."""
    actions: list[Action] = []
    for op, stage, microbatch in order:
        forward = op is Op.FORWARD
        crosses = op is not Op.WEIGHT_GRADIENT
        if crosses and stage != (0 if forward else last):
            receive = Op.RECV_ACTIVATION if forward else Op.RECV_GRADIENT
            actions.append(Action(receive, name, stage, microbatch))
        actions.append(Action(op, name, stage, microbatch))
        if crosses and stage != (last if forward else 0):
            send = Op.SEND_ACTIVATION if forward else Op.SEND_GRADIENT
            actions.append(Action(send, name, stage, microbatch))
    return tuple(actions)
