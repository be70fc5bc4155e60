"""Builds any layer range of a model with initial weights that do not depend on the range.

Every parameter draws from a generator of its own, seeded by the job's seed and the parameter's global name: two
pipelines that cut the model differently start from bitwise the same weights.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from polyreme.errors import InputError
from polyreme.layout.layers import layer_kind, num_layers, parameters
from polyreme.models.llama import Block, Embedding, Head, rotation_table
from polyreme.specs.fields import LayerKind
from polyreme.specs.model import ModelFamily, ModelSpec

INITIAL_STD = 0.02


class StageLayers(nn.Module):
    """Layers [start, stop) of a model. `named` maps global parameter names to the parameters held."""

    def __init__(self, model: ModelSpec, start: int, stop: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        check_runnable(model)
        self.model, self.start, self.stop, self.dtype = model, start, stop, dtype
        with torch.device("meta"):
            self.layers = nn.ModuleList([_empty_layer(model, layer) for layer in range(start, stop)])
        self.to_empty(device="cpu")
        self.to(dtype)
        self.named: dict[str, nn.Parameter] = {}
        for layer, module in zip(range(start, stop), self.layers, strict=True):
            self._name_parameters(layer, module, seed)
        self._rotations: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def has_head(self) -> bool:
        """Whether the range ends with the head, so that its output is a loss."""
        return self.stop == num_layers(self.model)

    def forward(self, value: Tensor, labels: Tensor | None = None) -> Tensor:
        """Token ids or hidden states [sequences, tokens(, hidden)] -> hidden states, or the head's summed loss."""
        rotation = self._rotation(value.shape[1])
        for layer in self.layers:
            if isinstance(layer, Block):
                value = layer(value, rotation)
            elif isinstance(layer, Head):
                value = layer(value, labels)
            else:
                value = layer(value)
        return value

    def _rotation(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        if num_tokens not in self._rotations:
            self._rotations = {num_tokens: rotation_table(self.model, num_tokens, self.dtype)}
        return self._rotations[num_tokens]

    def _name_parameters(self, layer: int, module: nn.Module, seed: int) -> None:
        """Name and initialise a layer's parameters, in layout's order; a tied head takes the embedding's."""
        for expected, parameter in zip(parameters(self.model, layer), module.parameters(), strict=True):
            assert tuple(parameter.shape) == expected.shape, f"{expected.name}: {parameter.shape}, not {expected.shape}"
            if expected.name in self.named and isinstance(module, Head):
                module.lm_head.weight = self.named[expected.name]
            else:
                initialise(parameter, expected.name, seed, self.model.num_layers)
                self.named[expected.name] = parameter


def check_runnable(model: ModelSpec) -> None:
    """InputError if the blocks here do not cover the model."""
    problems = []
    if model.family is not ModelFamily.LLAMA:
        problems.append(f"family {model.family} can be planned and simulated but not trained yet; llama can")
    if model.rope_scaling is not None:
        problems.append(f"rope_scaling {model.rope_scaling} cannot be trained yet")
    if model.attention_window is not None:
        problems.append(f"attention_window {model.attention_window} cannot be trained yet")
    if problems:
        raise InputError.single(f"model {model.name}", "; ".join(problems))


def initialise(parameter: Tensor, name: str, seed: int, num_blocks: int) -> None:
    """Fill in place: norms with 1, matrices from N(0, 0.02), those that write to the residual stream scaled down.

    The scale 1 / sqrt(2 * blocks) is that of Radford et al. (GPT-2, 2019), section 2.3.
    """
    with torch.no_grad():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            return
        generator = torch.Generator().manual_seed(_seed_of(seed, name))
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        std = INITIAL_STD / math.sqrt(2 * num_blocks) if residual else INITIAL_STD
        values = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
        parameter.copy_(values)


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest(), "little")


def _empty_layer(model: ModelSpec, layer: int) -> nn.Module:
    kind = layer_kind(model, layer)
    if kind is LayerKind.EMBEDDING:
        return Embedding(model)
    return Head(model) if kind is LayerKind.HEAD else Block(model)
