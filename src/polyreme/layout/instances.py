"""Pipelines as they run: a plan's pipeline once per base rank, with absolute ranks and its share of the batch."""

from dataclasses import dataclass

from polyreme.errors import InputError
from polyreme.specs.plan import Group, Pipeline, Plan


@dataclass(frozen=True, slots=True)
class PipelineInstance:
    """One running copy of a pipeline. `first_sequence` is where its part of the global batch starts."""

    name: str
    pipeline: Pipeline
    base_rank: int
    first_sequence: int

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.pipeline.stages)

    def groups(self, stage: int) -> list[tuple[Group, tuple[int, ...]]]:
        """Groups of a stage with their absolute ranks."""
        return [
            (group, tuple(self.base_rank + rank for rank in group.ranks))
            for group in self.pipeline.stages[stage].groups
        ]

    def ranks(self, stage: int) -> tuple[int, ...]:
        """All absolute ranks of a stage."""
        return tuple(rank for _, ranks in self.groups(stage) for rank in ranks)

    def places(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """(stages, ranks) of every set of ranks that holds the same stages, by first stage.

        InputError if two stages share some of their ranks but not all.
        """
        held: dict[frozenset[int], list[int]] = {}
        for stage in range(self.num_stages):
            held.setdefault(frozenset(self.ranks(stage)), []).append(stage)
        sets = list(held)
        for number, one in enumerate(sets):
            for other in sets[number + 1 :]:
                if one & other:
                    stages = f"stages {held[one][0]} and {held[other][0]} of pipeline {self.name}"
                    problem = f"{stages} share ranks {sorted(one & other)} but not all"
                    raise InputError.single("plan", problem, fix="give two stages the same ranks or different ones")
        return tuple((tuple(stages), tuple(sorted(ranks))) for ranks, stages in held.items())


def instances(plan: Plan) -> tuple[PipelineInstance, ...]:
    """All running pipelines in plan order. A repeated pipeline is called `name@base`."""
    found, first = [], 0
    for pipeline in plan.pipelines:
        for base in pipeline.base_ranks:
            name = pipeline.name if len(pipeline.base_ranks) == 1 else f"{pipeline.name}@{base}"
            found.append(PipelineInstance(name, pipeline, base, first))
            first += pipeline.microbatches * pipeline.microbatch_sequences
    return tuple(found)


def stages_of(plan: Plan, rank: int) -> tuple[tuple[PipelineInstance, int], ...]:
    """The (pipeline, stage) pairs that a rank works on, in order."""
    return tuple(
        (instance, stage)
        for instance in instances(plan)
        for stage in range(instance.num_stages)
        if rank in instance.ranks(stage)
    )
