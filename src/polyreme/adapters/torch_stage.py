"""Stages computed by torch: autograd across microbatches, and every byte that forward keeps counted on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyreme.adapters.split_backward import WeightGradients, split_linears
from polyreme.drivers.base import MemoryLedger
from polyreme.models.layer_range import LayerRange
from polyreme.models.recompute import KeptProducts


@dataclass(slots=True)
class _Kept:
    """What a microbatch holds between its forward and the end of its backward."""

    value: Tensor
    output: Tensor | None
    num_bytes: int
    weight_gradients: list[Callable[[], None]]


class TorchStage:
    """A `StageModule` over a `LayerRange`. The loss's backward starts from `loss_seed`: 1 / tokens of the step.

    `splits` says whether backwards will come in two halves; linear layers are slightly slower then.
    """

    def __init__(self, layers: LayerRange, memory: MemoryLedger | None = None, *, splits: bool = False) -> None:
        self.layers = layers
        self.memory = memory
        self.loss_seed = 1.0
        self._kept: dict[int, _Kept] = {}
        self._kept_bytes: dict[torch.Size, int] = {}
        self._queue = WeightGradients()
        if splits:
            split_linears(layers, self._queue)

    def forward(self, microbatch: int, value: Tensor, labels: Tensor | None) -> Tensor:
        """See `StageModule`. Values: token ids [sequences, tokens] or hidden states [sequences, own tokens, hidden]."""
        value, labels = self._on_device(value, labels)
        if value.is_floating_point():
            value.requires_grad_()
        kept_bytes = self._kept_bytes.get(value.shape)
        if kept_bytes is None:
            weights = {parameter.untyped_storage().data_ptr() for parameter in self.layers.parameters()}
            self.layers.products = products = KeptProducts()
            output, kept_bytes = count_kept(lambda: self.layers(value, labels), weights)
            self.layers.products = None
            kept_bytes += products.num_bytes
            self._kept_bytes[value.shape] = kept_bytes
        else:
            output = self.layers(value, labels)
        if self.memory is not None:
            self.memory.hold("activations", kept_bytes)
        self._kept[microbatch] = _Kept(value, output, kept_bytes, [])
        result: Tensor = output.detach()
        return result

    def evaluate(self, value: Tensor, labels: Tensor | None) -> Tensor:
        """See `StageModule`."""
        value, labels = self._on_device(value, labels)
        with torch.no_grad():
            output: Tensor = self.layers(value, labels)
        return output

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """See `StageModule`."""
        result = self._differentiate(self._kept[microbatch], gradient)
        self._release(microbatch)
        return result

    def backward_input(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """See `StageModule`."""
        kept = self._kept[microbatch]
        self._queue.deferred = kept.weight_gradients
        try:
            return self._differentiate(kept, gradient)
        finally:
            self._queue.deferred = None

    def backward_weight(self, microbatch: int) -> None:
        """See `StageModule`."""
        for add in self._kept[microbatch].weight_gradients:
            add()
        self._release(microbatch)

    def state(self) -> dict[str, nn.Parameter]:
        """Global parameter name -> parameter."""
        return self.layers.named

    def _on_device(self, value: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        device = self.layers.torch_device
        return value.to(device), None if labels is None else labels.to(device)

    def _differentiate(self, kept: _Kept, gradient: Tensor | None) -> Tensor | None:
        output, kept.output = kept.output, None
        assert output is not None, "a backward of this microbatch has run already"
        if gradient is None:
            gradient = torch.full_like(output, self.loss_seed)
        torch.autograd.backward([output], [gradient])
        result, kept.value.grad = kept.value.grad, None
        return result

    def _release(self, microbatch: int) -> None:
        kept = self._kept.pop(microbatch)
        if self.memory is not None:
            self.memory.release("activations", kept.num_bytes)


def count_kept(compute: Callable[[], Tensor], weights: set[int]) -> tuple[Tensor, int]:
    """Result of `compute`, and the bytes that autograd keeps for its backward, each storage once, weights left out."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = compute()
    return output, sum(storages.values())
