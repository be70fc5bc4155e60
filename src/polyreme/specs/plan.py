"""plan.json: the only bridge from planning to running. The smallest form that says everything.

What can be derived (edges, owners, buckets, action lists) is derived by `layout` and `schedules` and never stored.
Rank = position in `workers`. A pipeline is repeated once per entry of `base_ranks`; its ranks are relative to that.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Len
from pydantic import Field

from polyreme.specs.fields import (
    Feature,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Precision,
    Recompute,
    ScheduleName,
    Text,
    Transport,
    spec,
)
from polyreme.specs.job import Batch


@spec
class StageTime:
    """Predicted seconds of one microbatch on a stage: forward, input gradient, weight gradient (backward = i + w)."""

    f: NonNegativeFloat
    i: NonNegativeFloat
    w: NonNegativeFloat

    @property
    def backward_s(self) -> float:
        """Seconds of a whole backward."""
        return self.i + self.w


@spec
class Group:
    """One model copy of a stage: `tp` x `cp` ranks that share `sequences` of every microbatch."""

    ranks: Annotated[tuple[NonNegativeInt, ...], Len(1)]
    tp: PositiveInt = 1
    cp: PositiveInt = 1
    sequences: PositiveInt

    def __post_init__(self) -> None:
        if self.tp * self.cp != len(self.ranks):
            raise ValueError(f"tp {self.tp} x cp {self.cp} is not the number of ranks, {len(self.ranks)}")
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"a rank appears twice in {list(self.ranks)}")


@spec
class Stage:
    """A half-open range of layers and the groups that hold it. The data degree is the number of groups."""

    layers: tuple[NonNegativeInt, NonNegativeInt]
    groups: Annotated[tuple[Group, ...], Len(1)]
    ep: PositiveInt = 1
    precision: Precision
    recompute: Recompute = Recompute.NONE
    zero: Annotated[NonNegativeInt, Field(le=3)] = 0
    optimizer_at: Literal["device", "host", "nvme"] = "device"
    framework: Text = "torch"
    time_s: StageTime

    def __post_init__(self) -> None:
        if self.layers[0] >= self.layers[1]:
            raise ValueError(f"layers {list(self.layers)} is empty; a half-open range [start, stop) was expected")
        ranks = [rank for group in self.groups for rank in group.ranks]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"a rank belongs to two groups of one stage: {ranks}")


@spec
class Schedule:
    """A schedule by name. `list` follows the stages' times and holds at most `in_flight` microbatches per stage."""

    name: ScheduleName
    in_flight: tuple[PositiveInt, ...] | None = None

    def __post_init__(self) -> None:
        if self.in_flight is not None and self.name is not ScheduleName.LIST:
            raise ValueError(f"in_flight belongs to schedule list; {self.name} has its own limit")


@spec
class Pipeline:
    """Stages in order, run `microbatches` times a step, once per base rank."""

    name: Text
    microbatches: PositiveInt
    microbatch_sequences: PositiveInt
    base_ranks: Annotated[tuple[NonNegativeInt, ...], Len(1)] = (0,)
    schedule: Schedule
    stages: Annotated[tuple[Stage, ...], Len(1)]

    def __post_init__(self) -> None:
        problems = []
        held = self.schedule.in_flight
        if held is not None and len(held) != len(self.stages):
            problems.append(f"in_flight has {len(held)} entries for {len(self.stages)} stages")
        if self.stages[0].layers[0] != 0:
            problems.append(f"the first stage starts at layer {self.stages[0].layers[0]}, not 0")
        for index, (left, right) in enumerate(zip(self.stages, self.stages[1:], strict=False)):
            if left.layers[1] != right.layers[0]:
                problems.append(
                    f"stage {index} ends at layer {left.layers[1]} but stage {index + 1} starts at {right.layers[0]}"
                )
        for index, stage in enumerate(self.stages):
            total = sum(group.sequences for group in stage.groups)
            if total != self.microbatch_sequences:
                problems.append(
                    f"stage {index}: its groups take {total} sequences of a microbatch of {self.microbatch_sequences}"
                )
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def num_layers(self) -> int:
        """Layers covered, embedding and head counted."""
        return self.stages[-1].layers[1]


@spec
class EdgeSetting:
    """A transport other than the default between two (pipeline, stage) ends."""

    source: Annotated[tuple[Text, NonNegativeInt], Field(alias="from")]
    target: Annotated[tuple[Text, NonNegativeInt], Field(alias="to")]
    transport: Transport


@spec
class Predicted:
    """Interval (low, middle, high) of the predicted step time, seconds."""

    step_time_s: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]

    def __post_init__(self) -> None:
        low, middle, high = self.step_time_s
        if not low <= middle <= high:
            raise ValueError(f"interval out of order: {[low, middle, high]}")


@spec
class Inputs:
    """Content digests of what the plan was made from."""

    model: Text
    cluster: Text
    job: Text
    profile: Text | None = None


@spec
class Sources:
    """Where those inputs were, relative to the plan file; not part of the digest."""

    model: Text
    cluster: Text
    job: Text
    profile: Text | None = None


@spec
class Plan:
    """A whole plan. Valid by construction: see each `__post_init__` for what is checked."""

    schema: Literal["polyreme.plan/1"] = "polyreme.plan/1"
    created_by: Text
    digest: Text = "unsigned"
    inputs: Inputs
    sources: Sources | None = None
    requires: tuple[Feature, ...] = ()
    batch: Batch
    workers: Annotated[tuple[Text, ...], Len(1)]
    pipelines: Annotated[tuple[Pipeline, ...], Len(1)]
    edges: tuple[EdgeSetting, ...] = ()
    predicted: Predicted

    def __post_init__(self) -> None:
        problems = [*self._rank_problems(), *self._batch_problems(), *self._edge_problems()]
        if problems:
            raise ValueError("; ".join(problems))

    def _rank_problems(self) -> Iterator[str]:
        names = [pipeline.name for pipeline in self.pipelines]
        if len(set(names)) != len(names):
            yield f"two pipelines have one name: {names}"
        if len(set(self.workers)) != len(self.workers):
            yield "a worker appears twice in workers"
        owner: dict[int, str] = {}
        for pipeline in self.pipelines:
            for base in pipeline.base_ranks:
                ranks = {base + rank for stage in pipeline.stages for group in stage.groups for rank in group.ranks}
                for rank in sorted(ranks):
                    if rank >= len(self.workers):
                        yield f"pipeline {pipeline.name}: rank {rank} but there are {len(self.workers)} workers"
                    elif rank in owner:
                        yield f"rank {rank} is in pipeline {owner[rank]} and in {pipeline.name} (base {base})"
                    owner[rank] = f"{pipeline.name} (base {base})"
        idle = [rank for rank in range(len(self.workers)) if rank not in owner]
        if idle:
            yield f"ranks without a stage: {idle[:8]}; leave these workers out"

    def _batch_problems(self) -> Iterator[str]:
        total = sum(p.microbatches * p.microbatch_sequences * len(p.base_ranks) for p in self.pipelines)
        if total != self.batch.sequences:
            yield f"the pipelines take {total} sequences a step, the batch has {self.batch.sequences}"
        depths = {pipeline.num_layers for pipeline in self.pipelines}
        if len(depths) > 1:
            yield f"pipelines cover different numbers of layers: {sorted(depths)}"

    def _edge_problems(self) -> Iterator[str]:
        stages = {(p.name, index) for p in self.pipelines for index in range(len(p.stages))}
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in stages:
                    yield f"edge end {list(end)} is no stage of the plan"
            if edge.target != (edge.source[0], edge.source[1] + 1):
                yield f"edge from {list(edge.source)} to {list(edge.target)} joins no two neighbouring stages"

    @property
    def num_layers(self) -> int:
        """Layers of the model, embedding and head counted."""
        return self.pipelines[0].num_layers
