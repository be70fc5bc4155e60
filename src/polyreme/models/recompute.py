"""Runs a block so that its backward computes again what forward did not keep."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
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


class KeptProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of what selective recompute keeps while it is open: hooks on saved tensors do not see it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _KEPT:
            results = result if isinstance(result, tuple) else (result,)
            self.num_bytes += sum(one.nbytes for one in results if isinstance(one, Tensor))
        return result


def recomputed(block: nn.Module, recompute: Recompute, *values: Any, counted: KeptProducts | None = None) -> Tensor:
    """`block(*values)`; full: backward starts from the block's input; selective: matrix products are kept, too.

    Chen et al., arXiv 1604.06174, section 4.2; selective: Korthikanti et al., arXiv 2205.05198, section 5.
    `counted` adds up what is kept beside the block's input.
    """
    if recompute is Recompute.NONE or not torch.is_grad_enabled():
        out: Tensor = block(*values)
        return out
    values = (_Counted.apply(values[0]), *values[1:])  # type: ignore[no-untyped-call]
    keep: dict[str, Any] = {}
    if recompute is Recompute.SELECTIVE:
        keep["context_fn"] = partial(create_selective_checkpoint_contexts, _KEPT)
    counting = counted if recompute is Recompute.SELECTIVE and counted is not None else nullcontext()
    with counting:
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
