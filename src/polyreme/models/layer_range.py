"""What a stage computes, whoever wrote the layers."""

import torch
from torch import Tensor, nn

from polyreme.models.recompute import KeptProducts
from polyreme.models.tensor_parallel import TensorGroup

ACCUMULATED = torch.float32
"""Least dtype in which gradients add up over microbatches, whatever the weights are."""


class LayerRange(nn.Module):
    """Layers [start, stop) of a model. `named` maps global parameter names to what is held here.

    Its forward takes token ids [sequences, tokens] or hidden states, and gives hidden states or the summed loss.
    """

    def __init__(self, dtype: torch.dtype, torch_device: str, ranks: TensorGroup) -> None:
        super().__init__()
        self.dtype, self.torch_device, self.ranks = dtype, torch_device, ranks
        self.named: dict[str, nn.Parameter] = {}
        self.products: KeptProducts | None = None
        """Set while what a forward keeps is counted."""

    def forward(self, value: Tensor, labels: Tensor | None = None) -> Tensor:
        """See the class."""
        raise NotImplementedError

    def hold(self, name: str, parameter: nn.Parameter) -> None:
        """Keep a parameter under its global name; gradients of narrow ones add up in a wider dtype."""
        if parameter.dtype.itemsize < ACCUMULATED.itemsize:
            parameter.grad_dtype = ACCUMULATED
        self.named[name] = parameter
