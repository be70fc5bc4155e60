"""Tensor parallelism inside a stage: every rank computes its part of each matrix, activations lie cut by tokens.

Korthikanti et al., arXiv 2205.05198, section 4.2.2: between the matrices each rank holds its tokens only.
`gather_tokens` before a matrix that is cut by output and `scatter_sum` after one that is cut by input are each other's
transpose. What is not cut (norms) sees each token on one rank, so its gradient is a part of a sum like all others.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """The ranks that share a model copy of a stage: this rank's place among them, and their process group."""

    index: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None


def gather_tokens(states: Tensor, ranks: TensorGroup) -> Tensor:
    """[sequences, own tokens, hidden] -> [sequences, all tokens, hidden]; backward sums and cuts again."""
    return states if ranks.size == 1 else _Gather.apply(states, ranks)  # type: ignore[no-untyped-call]


def scatter_sum(states: Tensor, ranks: TensorGroup) -> Tensor:
    """Sum over the ranks of [sequences, all tokens, hidden], cut to [sequences, own tokens, hidden]."""
    return states if ranks.size == 1 else _Scatter.apply(states, ranks)  # type: ignore[no-untyped-call]


def sharded_cross_entropy(logits: Tensor, labels: Tensor, first: int, ignored: int, ranks: TensorGroup) -> Tensor:
    """Summed loss of [rows, own vocabulary] logits that begin at token id `first`; the same on every rank."""
    if ranks.size == 1:
        return functional.cross_entropy(logits, labels, ignore_index=ignored, reduction="sum")
    return _CrossEntropy.apply(logits, labels, first, ignored, ranks)  # type: ignore[no-any-return,no-untyped-call]


def _gather(states: Tensor, ranks: TensorGroup) -> Tensor:
    part = states.transpose(0, 1).contiguous()
    whole = part.new_empty(part.shape[0] * ranks.size, *part.shape[1:])
    dist.all_gather_single(whole, part, group=ranks.group)
    return whole.transpose(0, 1)


def _scatter(states: Tensor, ranks: TensorGroup) -> Tensor:
    whole = states.transpose(0, 1).contiguous()
    part = whole.new_empty(whole.shape[0] // ranks.size, *whole.shape[1:])
    dist.reduce_scatter_single(part, whole, group=ranks.group)
    return part.transpose(0, 1)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return _gather(states, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _scatter(gradients[0], ctx.ranks), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return _scatter(states, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gather(gradients[0], ctx.ranks), None


class _CrossEntropy(torch.autograd.Function):
    """Every rank needs the largest logit, the sum of exponentials and the label's logit of the whole vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, first: int, ignored: int, ranks: TensorGroup) -> Tensor:
        largest = logits.amax(dim=-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=ranks.group)
        exponentials = (logits - largest.unsqueeze(-1)).exp_()
        own = (labels >= first) & (labels < first + logits.shape[-1])
        column = torch.where(own, labels - first, 0).unsqueeze(-1)
        of_label = torch.where(own, logits.gather(-1, column).squeeze(-1) - largest, 0.0)
        sums = torch.stack((exponentials.sum(dim=-1), of_label))
        dist.all_reduce(sums, group=ranks.group)
        counted = labels != ignored
        ctx.save_for_backward(exponentials.div_(sums[0].unsqueeze(-1)), column, own, counted)
        return torch.where(counted, sums[0].log() - sums[1], 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shares, column, own, counted = ctx.saved_tensors
        gradient = shares.scatter_add(-1, column, -own.to(shares.dtype).unsqueeze(-1))
        return gradient * (counted.unsqueeze(-1) * gradients[0]), None, None, None, None
