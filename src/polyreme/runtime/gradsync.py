"""Sums gradients over the owners of each bucket, and takes the norm of all: always a sum, no factor anywhere."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm

from polyreme.layout.owners import Atom, Bucket, Shard
from polyreme.runtime.transports.base import lost

Held = Mapping[str, tuple[Shard, ...]]
"""Parameter name -> the parts of it that this rank's tensor holds, one behind the other."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """How one bucket is summed: inside each island of devices that share a backend, then between their first ranks.

    `leaders` is None where all owners are one island.
    """

    island: dist.ProcessGroup | None
    leaders: dist.ProcessGroup | None
    leader: int


class GradientSync:
    """One worker's part in all reductions. `counted` are the atoms whose squares this rank adds to the norm."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        reductions: Mapping[int, Reduction],
        held: Held,
        counted: Sequence[Atom],
        parameters: Mapping[str, Tensor],
    ) -> None:
        self.buckets, self.reductions, self.held = buckets, reductions, held
        self.counted, self.parameters = counted, parameters

    def reduce(self, number: int) -> None:
        """Replace the gradients of a bucket by their sum over its owners. PeerLostError if an owner is gone."""
        bucket = self.buckets[number]
        parts = [self._gradient(atom) for atom in bucket.atoms]
        flat = torch.cat([part.flatten() for part in parts])
        try:
            sum_over_owners(flat, self.reductions[number])
        except RuntimeError as error:
            raise lost(bucket.owners, error) from error
        for part, summed in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
            part.copy_(summed.view_as(part))

    def norm(self) -> float:
        """Norm of all gradients of the model, each element counted by one owner; the same on every worker."""
        norm = get_total_norm([self._gradient(atom) for atom in self.counted])
        own = norm.to("cpu", torch.float64).square().reshape(1)
        if dist.get_world_size() > 1:
            everywhere = own.new_empty(dist.get_world_size())
            try:
                dist.all_gather_single(everywhere, own)
            except RuntimeError as error:
                raise lost([rank for rank in range(len(everywhere)) if rank != dist.get_rank()], error) from error
            own = everywhere
        return math.sqrt(sum(own.tolist()))

    def _gradient(self, atom: Atom) -> Tensor:
        """The atom's part of the gradient that this rank holds, as a view."""
        shard, offset = atom.shard, 0
        parameter = self.parameters[shard.parameter]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype or parameter.dtype)
        if shard.dim is None:
            return parameter.grad
        for part in self.held[shard.parameter]:
            if part.start <= shard.start and shard.stop <= part.stop:
                return parameter.grad.narrow(shard.dim, offset + shard.start - part.start, shard.stop - shard.start)
            offset += part.stop - part.start
        raise AssertionError(f"{shard} is not held here")


def sum_over_owners(flat: Tensor, how: Reduction) -> None:
    """Sum in place over all owners. Between islands the sum goes through host memory."""
    if how.island is not None:
        dist.all_reduce(flat, group=how.island)
    if how.leaders is None:
        return
    if dist.get_rank() == how.leader:
        host = flat.cpu()
        dist.all_reduce(host, group=how.leaders)
        flat.copy_(host)
    if how.island is not None:
        dist.broadcast(flat, src=how.leader, group=how.island)
