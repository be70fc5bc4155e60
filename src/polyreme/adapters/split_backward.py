"""Lets a backward leave the weight gradients of linear layers for later.

A linear layer of a stage, its weight stored either way round, puts its weight gradient, one matrix product, as a
closure into the stage's queue; the rest of backward is autograd's. Where nothing is to be deferred the closure runs at
once, and adds straight to the gradient, without a tensor in between. Layers of any other kind do all of their backward
with the input gradient, so any module can be split.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyreme.models.gpt import Conv1D


class WeightGradients:
    """Weight gradients of one backward: run at once, or kept while `deferred` is a list."""

    def __init__(self) -> None:
        self.deferred: list[Callable[[], None]] | None = None

    def put(self, work: Callable[[], None]) -> None:
        """Run or keep one closure."""
        if self.deferred is None:
            work()
        else:
            self.deferred.append(work)


def split_linears(module: nn.Module, queue: WeightGradients) -> None:
    """Make every linear layer of `module` use `queue`. Subclasses of nn.Linear keep a forward of their own."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | Conv1D) and type(layer) in (nn.Linear, Conv1D):
            layer.forward = partial(_forward, layer, queue)  # type: ignore[method-assign]


def _forward(layer: nn.Linear | Conv1D, queue: WeightGradients, value: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return type(layer).forward(layer, value)  # type: ignore[arg-type]
    out: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        value, layer.weight, layer.bias, isinstance(layer, Conv1D), queue
    )
    return out


class _Linear(torch.autograd.Function):
    """`inputs_first` says that the weight is [inputs, outputs] in place of [outputs, inputs]."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        inputs_first: bool,
        queue: WeightGradients,
    ) -> Tensor:
        ctx.save_for_backward(value)
        ctx.weight, ctx.bias = weight, bias  # not saved: what is unpacked is another tensor
        ctx.inputs_first, ctx.queue = inputs_first, queue
        return functional.linear(value, weight.t() if inputs_first else weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (value,) = ctx.saved_tensors
        gradient, weight, bias = gradients[0], ctx.weight, ctx.bias
        result = gradient.matmul(weight.t() if ctx.inputs_first else weight) if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            left, right = (value, gradient) if ctx.inputs_first else (gradient, value)
            ctx.queue.put(partial(_add_weight_gradient, weight, left, right))
            if bias is not None:
                ctx.queue.put(partial(_add_bias_gradient, bias, gradient))
        return result, None, None, None, None


def _add_weight_gradient(weight: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left.T @ right, the rows of all sequences and tokens taken together."""
    left, right = left.flatten(0, -2), right.flatten(0, -2)
    with torch.no_grad():
        if weight.grad is not None and weight.grad.dtype is left.dtype:
            weight.grad.addmm_(left.t(), right)
        else:
            _add(weight, left.t().mm(right))


def _add_bias_gradient(bias: Tensor, gradient: Tensor) -> None:
    with torch.no_grad():
        _add(bias, gradient.flatten(0, -2).sum(dim=0))


def _add(parameter: Tensor, gradient: Tensor) -> None:
    """Add to a gradient, which may be kept in a wider dtype than the parameter."""
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.grad_dtype or parameter.dtype)
    else:
        parameter.grad.add_(gradient)
