"""Runs a block so that its backward computes again what forward did not keep."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from polyreme.specs.fields import Recompute

_aten: Any = torch.ops.aten
_KEPT = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Results that selective recompute keeps: matrix products and attention. The rest moves memory and computes little."""


def recomputed(block: nn.Module, recompute: Recompute, *values: Any) -> Tensor:
    """`block(*values)`; full: backward starts from the block's input; selective: matrix products are kept, too.

    Chen et al., arXiv 1604.06174, section 4.2; selective: Korthikanti et al., arXiv 2205.05198, section 5.
    """
    if recompute is Recompute.NONE or not torch.is_grad_enabled():
        out: Tensor = block(*values)
        return out
    values = (_Counted.apply(values[0]), *values[1:])  # type: ignore[no-untyped-call]
    keep: dict[str, Any] = {}
    if recompute is Recompute.SELECTIVE:
        keep["context_fn"] = partial(create_selective_checkpoint_contexts, _KEPT)
    again: Tensor = checkpoint(block, *values, use_reentrant=False, preserve_rng_state=False, **keep)
    return again


class _Counted(torch.autograd.Function):
    """Saves a block's input, which a checkpoint only refers to, so that it counts as kept for backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value.view_as(value)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
