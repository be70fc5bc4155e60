"""Lets a backward leave the weight gradients of linear layers for later.

A linear layer of a stage puts its weight gradient, one matrix product, as a closure into the stage's queue; the rest of
backward is autograd's. Where nothing is to be deferred the closure runs at once, and adds straight to the gradient,
without a tensor in between. Layers of any other kind do all of their backward with the input gradient, so any module
can be split.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


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
        if type(layer) is nn.Linear:
            layer.forward = partial(_forward, layer, queue)  # type: ignore[method-assign]


def _forward(layer: nn.Linear, queue: WeightGradients, value: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return functional.linear(value, layer.weight, layer.bias)
    out: Tensor = _Linear.apply(value, layer.weight, layer.bias, queue)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, queue: WeightGradients
    ) -> Tensor:
        ctx.save_for_backward(value)
        ctx.weight, ctx.bias, ctx.queue = weight, bias, queue  # not saved: what is unpacked is another tensor
        return functional.linear(value, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (value,) = ctx.saved_tensors
        gradient, weight, bias = gradients[0], ctx.weight, ctx.bias
        result = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            ctx.queue.put(partial(_add_weight_gradient, weight, bias, value, gradient))
        return result, None, None, None


def _add_weight_gradient(weight: Tensor, bias: Tensor | None, value: Tensor, gradient: Tensor) -> None:
    rows, outputs = value.flatten(0, -2), gradient.flatten(0, -2)
    with torch.no_grad():
        if weight.grad is not None and weight.grad.dtype is value.dtype:
            weight.grad.addmm_(outputs.t(), rows)
        else:
            _add(weight, outputs.t().mm(rows))
        if bias is not None:
            _add(bias, outputs.sum(dim=0))


def _add(parameter: Tensor, gradient: Tensor) -> None:
    """Add to a gradient, which may be kept in a wider dtype than the parameter."""
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.grad_dtype or parameter.dtype)
    else:
        parameter.grad.add_(gradient)
