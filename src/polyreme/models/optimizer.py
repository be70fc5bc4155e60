"""The optimizer of one worker: AdamW over the parameters that it holds, its memory counted on the device."""

from collections.abc import Mapping

import torch

from polyreme.drivers.base import MemoryLedger
from polyreme.specs.job import AdamW


class Updater:
    """Holds weights, gradients and moments of a worker on its device. OutOfDeviceMemoryError if too many."""

    def __init__(self, settings: AdamW, parameters: Mapping[str, torch.nn.Parameter], memory: MemoryLedger) -> None:
        held_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
        memory.hold("weights", held_bytes)
        memory.hold("gradients", held_bytes)
        memory.hold("optimizer", 2 * held_bytes)
        matrices = [parameter for parameter in parameters.values() if parameter.dim() > 1]
        vectors = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
        )

    def step(self) -> None:
        """Update all parameters from their gradients, then forget the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
