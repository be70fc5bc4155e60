"""The tensors of one worker's part of a step's batch, read by the worker itself."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polyreme.layout.boundaries import boxes
from polyreme.layout.instances import PipelineInstance, stages_of
from polyreme.models.llama import IGNORED_LABEL
from polyreme.runtime.executor import Place
from polyreme.specs.job import Batch
from polyreme.specs.plan import Plan
from polyreme.training.source import DataSource

Shares = Mapping[Place, tuple[PipelineInstance, int, int]]
"""Place -> (pipeline, first and last sequence of each microbatch that a worker takes there)."""


def shares_of(plan: Plan, rank: int) -> Shares:
    """What `rank` takes of every microbatch at each of its places."""
    found = {}
    for instance, index in stages_of(plan, rank):
        box = boxes(instance, index, plan.batch.tokens_per_sequence)[rank]
        found[instance.name, index] = (instance, box.start, box.stop)
    return found


class StepBatch:
    """A `BatchSource` for one step. `shares` holds the part of each microbatch that this worker takes at a place."""

    def __init__(
        self,
        source: DataSource,
        seed: int,
        step: int,
        batch: Batch,
        shares: Shares,
    ) -> None:
        self.source, self.seed, self.step, self.batch, self.shares = source, seed, step, batch, shares

    def tokens(self, place: Place, microbatch: int) -> Tensor:
        """Token ids [sequences, tokens], zero after the end of what was read."""
        return self._read(place, microbatch)[0]

    def labels(self, place: Place, microbatch: int) -> Tensor:
        """Next token of each position [sequences, tokens]; IGNORED_LABEL after it."""
        return self._read(place, microbatch)[1]

    def _read(self, place: Place, microbatch: int) -> tuple[Tensor, Tensor]:
        instance, start, stop = self.shares[place]
        first = instance.first_sequence + microbatch * instance.pipeline.microbatch_sequences
        num_sequences, num_tokens = self.batch.sequences, self.batch.tokens_per_sequence
        tokens = torch.zeros((stop - start, num_tokens), dtype=torch.int64)
        labels = torch.full_like(tokens, IGNORED_LABEL)
        for row, sequence in enumerate(range(first + start, first + stop)):
            read = self.source.read_sequence(self.seed, self.step, sequence, num_sequences, num_tokens)
            content, num_targets = torch.from_numpy(read), max(len(read) - 1, 0)
            tokens[row, :num_targets] = content[:-1]
            labels[row, :num_targets] = content[1:]
        return tokens, labels
