"""What crosses between two stages: which rank sends which sequences of a microbatch to which rank."""

from dataclasses import dataclass

from polyreme.layout.instances import PipelineInstance


@dataclass(frozen=True, slots=True)
class Transfer:
    """Sequences [start, stop) of every microbatch, from `source` to `target` forward and back as gradient."""

    source: int
    target: int
    start: int
    stop: int

    @property
    def num_sequences(self) -> int:
        """Sequences of one microbatch that cross."""
        return self.stop - self.start


def transfers(instance: PipelineInstance, stage: int) -> tuple[Transfer, ...]:
    """Transfers over the boundary from `stage` to the next: the groups' sequence intervals, intersected."""
    return tuple(
        Transfer(source, target, max(start, other_start), min(stop, other_stop))
        for source, start, stop in _intervals(instance, stage)
        for target, other_start, other_stop in _intervals(instance, stage + 1)
        if max(start, other_start) < min(stop, other_stop)
    )


def _intervals(instance: PipelineInstance, stage: int) -> list[tuple[int, int, int]]:
    """(first rank, start, stop) of each group of a stage, in sequences of a microbatch."""
    found, start = [], 0
    for group, ranks in instance.groups(stage):
        found.append((ranks[0], start, start + group.sequences))
        start += group.sequences
    return found
