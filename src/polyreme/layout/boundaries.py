"""What crosses between two stages: which rank sends which box of a microbatch to which rank.

At a boundary every rank of a stage holds one box of the hidden states: its group's sequences, and of their tokens the
part that its context and tensor rank hold (sequence-parallel boundaries: Korthikanti et al., arXiv 2205.05198, section
4.2.2). The boxes of both sides are intersected, so unlike degrees on the two sides need nothing more.
"""

from dataclasses import dataclass

from polyreme.layout.instances import PipelineInstance
from polyreme.layout.owners import interval


@dataclass(frozen=True, slots=True)
class Box:
    """Sequences [start, stop) and tokens [first_token, last_token) of a microbatch."""

    start: int
    stop: int
    first_token: int
    last_token: int

    @property
    def num_sequences(self) -> int:
        """Sequences of one microbatch in the box."""
        return self.stop - self.start

    @property
    def num_tokens(self) -> int:
        """Tokens of each of these sequences in the box."""
        return self.last_token - self.first_token

    def overlap(self, other: "Box") -> "Box | None":
        """What both boxes hold, None if nothing."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        first, last = max(self.first_token, other.first_token), min(self.last_token, other.last_token)
        return Box(start, stop, first, last) if start < stop and first < last else None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A box of every microbatch, from `source` to `target` forward and back as gradient."""

    source: int
    target: int
    box: Box


def boxes(instance: PipelineInstance, stage: int, num_tokens: int) -> dict[int, Box]:
    """Rank -> the box of hidden states that it holds where a stage begins and ends."""
    found, start = {}, 0
    for group, ranks in instance.groups(stage):
        for position, rank in enumerate(ranks):
            first, last = interval(num_tokens, group.cp, position // group.tp)
            inner, outer = interval(last - first, group.tp, position % group.tp)
            found[rank] = Box(start, start + group.sequences, first + inner, first + outer)
        start += group.sequences
    return found


def transfers(instance: PipelineInstance, stage: int, num_tokens: int) -> tuple[Transfer, ...]:
    """Transfers over the boundary from `stage` to the next, by source, then target."""
    found = []
    targets = boxes(instance, stage + 1, num_tokens)
    for source, box in boxes(instance, stage, num_tokens).items():
        for target, other in targets.items():
            common = box.overlap(other)
            if common is not None:
                found.append(Transfer(source, target, common))
    return tuple(found)
