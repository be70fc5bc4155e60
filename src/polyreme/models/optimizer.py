"""The optimizer of one worker: AdamW over the parameters that it holds, its memory counted on the device."""

from collections.abc import Mapping

import torch

from polyreme.drivers.base import MemoryLedger
from polyreme.models.layer_range import ACCUMULATED
from polyreme.specs.job import AdamW


class Updater:
    """Holds weights, gradients, masters and moments of a worker on its device. OutOfDeviceMemoryError if too many.

    16-bit weights have masters in fp32, which are what is updated (Micikevicius et al., arXiv 1710.03740, section 3.1).
    """

    def __init__(self, settings: AdamW, parameters: Mapping[str, torch.nn.Parameter], memory: MemoryLedger) -> None:
        self.parameters = list(parameters.values())
        self.masters = [
            one.detach().to(ACCUMULATED) if one.dtype.itemsize < ACCUMULATED.itemsize else one
            for one in self.parameters
        ]
        held_bytes = sum(one.numel() * one.element_size() for one in self.parameters)
        master_bytes = sum(one.numel() * one.element_size() for one in self.masters)
        memory.hold("weights", held_bytes)
        memory.hold("gradients", master_bytes)
        memory.hold("optimizer", 2 * master_bytes)
        if any(master is not one for master, one in zip(self.masters, self.parameters, strict=True)):
            memory.hold("master_weights", master_bytes)
        groups = [
            {"params": [one for one in self.masters if one.dim() > 1], "weight_decay": settings.weight_decay},
            {"params": [one for one in self.masters if one.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
        )

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Update all parameters from their gradients times `scale`, then forget the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None and scale != 1.0:
                parameter.grad.mul_(scale)
            if master is not parameter:
                master.grad = parameter.grad
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
        self.forget()

    def forget(self) -> None:
        """Drop the gradients without using them."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.grad = master.grad = None
