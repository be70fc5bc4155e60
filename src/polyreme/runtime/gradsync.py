"""Sums gradients over the owners of each bucket: one flat all-reduce, always a sum, no factor anywhere."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from polyreme.layout.owners import Bucket
from polyreme.runtime.transport import lost


def reduce_bucket(bucket: Bucket, parameters: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    """Replace the gradients of `bucket` by their sum over its owners, who all hold the parameters whole.

    PeerLostError if an owner is gone.
    """
    held = [parameters[atom.shard.parameter] for atom in bucket.atoms]
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in held]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    try:
        dist.all_reduce(flat, group=group)
    except RuntimeError as error:
        raise lost(bucket.owners, error) from error
    for parameter, part in zip(held, torch.split(flat, [one.numel() for one in held]), strict=True):
        parameter.grad = part.view_as(parameter)
