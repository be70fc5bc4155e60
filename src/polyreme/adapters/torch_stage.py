"""Stages computed by torch: autograd across microbatches, and every byte that forward keeps counted on the device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from polyreme.drivers.base import MemoryLedger
from polyreme.models.build import StageLayers


class TorchStage:
    """A `StageModule` over `StageLayers`. The loss's backward starts from `loss_seed`: 1 / tokens of the step."""

    def __init__(self, layers: StageLayers, memory: MemoryLedger | None = None) -> None:
        self.layers = layers
        self.memory = memory
        self.loss_seed = 1.0
        self._kept: dict[int, tuple[Tensor, Tensor, int]] = {}
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in layers.parameters()}

    def forward(self, microbatch: int, value: Tensor, labels: Tensor | None) -> Tensor:
        """See `StageModule`. Values: token ids [sequences, tokens] or hidden states [sequences, tokens, hidden]."""
        if value.is_floating_point():
            value.requires_grad_()
        kept_bytes = 0
        if self.memory is None:
            output = self.layers(value, labels)
        else:
            output, kept_bytes = count_kept(lambda: self.layers(value, labels), self._weights)
            self.memory.hold("activations", kept_bytes)
        self._kept[microbatch] = (value, output, kept_bytes)
        result: Tensor = output.detach()
        return result

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """See `StageModule`."""
        value, output, kept_bytes = self._kept.pop(microbatch)
        if gradient is None:
            gradient = torch.full_like(output, self.loss_seed)
        torch.autograd.backward([output], [gradient])
        if self.memory is not None:
            self.memory.release("activations", kept_bytes)
        return value.grad

    def state(self) -> dict[str, nn.Parameter]:
        """Global parameter name -> parameter."""
        return self.layers.named


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
