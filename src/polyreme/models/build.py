"""Builds any layer range of a model with initial weights that do not depend on the range.

Every parameter draws from a generator of its own, seeded by the job's seed and the parameter's global name: two
pipelines that cut the model differently start from bitwise the same weights.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from polyreme.errors import InputError
from polyreme.layout.layers import Parameter, layer_kind, num_layers, parameters
from polyreme.layout.owners import Shard, shards
from polyreme.models import gpt
from polyreme.models.coverage import uncovered
from polyreme.models.layer_range import LayerRange
from polyreme.models.llama import Block, Embedding, Head, rotation_table
from polyreme.models.recompute import recomputed
from polyreme.models.tensor_parallel import TensorGroup
from polyreme.specs.fields import LayerKind, Recompute
from polyreme.specs.model import ModelFamily, ModelSpec

Fill = Callable[[Tensor, Parameter, Sequence[Shard]], None]
"""Gives a held parameter its first value, from the whole parameter's name and shape and the parts that are held."""

INITIAL_STD = 0.02


class StageLayers(LayerRange):
    """Layers [start, stop) of a model, for one tensor rank. `named` maps global parameter names to what is held.

    `fill` gives the weights their first values; by default they are drawn with `seed`.
    `shared` names parameters that the worker's other stages hold already: a tied embedding is one tensor on a worker.
    """

    def __init__(
        self,
        model: ModelSpec,
        start: int,
        stop: int,
        seed: int,
        dtype: torch.dtype = torch.float32,
        ranks: TensorGroup = TensorGroup(),  # noqa: B008 - frozen
        recompute: Recompute = Recompute.NONE,
        shared: Mapping[str, nn.Parameter] | None = None,
        *,
        fill: Fill | None = None,
        torch_device: str = "cpu",
    ) -> None:
        super().__init__(dtype, torch_device, ranks)
        check_runnable(model)
        self.model, self.start, self.stop = model, start, stop
        self.recompute = recompute
        with torch.device("meta"):
            self.layers = nn.ModuleList([_empty_layer(model, layer, ranks) for layer in range(start, stop)])
        self.to_empty(device=torch_device)
        self.to(dtype)
        fill = fill or partial(initialise, seed=seed, num_blocks=model.num_layers)
        for layer, module in zip(range(start, stop), self.layers, strict=True):
            self._name_parameters(layer, module, fill, shared or {})
        self._rotations: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def has_head(self) -> bool:
        """Whether the range ends with the head, so that its output is a loss."""
        return self.stop == num_layers(self.model)

    def forward(self, value: Tensor, labels: Tensor | None = None) -> Tensor:
        """Token ids [sequences, tokens] or hidden states [sequences, own tokens, hidden] -> hidden states of the same
        shape, or the head's summed loss."""
        num_tokens = value.shape[1] * (self.ranks.size if value.is_floating_point() else 1)
        for layer in self.layers:
            if isinstance(layer, Block):
                value = recomputed(layer, self.recompute, value, self._rotation(num_tokens), counted=self.products)
            elif isinstance(layer, gpt.Block):
                value = recomputed(layer, self.recompute, value, counted=self.products)
            elif isinstance(layer, Head):
                value = layer(value, labels)
            else:
                value = layer(value)
        return value

    def _rotation(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        if num_tokens not in self._rotations:
            self._rotations = {num_tokens: rotation_table(self.model, num_tokens, self.dtype, self.torch_device)}
        return self._rotations[num_tokens]

    def _name_parameters(self, layer: int, module: nn.Module, fill: Fill, shared: Mapping[str, nn.Parameter]) -> None:
        """Name and fill a layer's parameters, in layout's order; a tied head takes the embedding's."""
        for expected, parameter in zip(parameters(self.model, layer), module.parameters(), strict=True):
            held = self.named.get(expected.name, shared.get(expected.name))
            if held is None:
                fill(parameter, expected, shards(expected, self.ranks.size, self.ranks.index))
                held = parameter
            elif isinstance(module, Head):
                module.lm_head.weight = held
            else:
                assert isinstance(module, Embedding), f"{expected.name} is tied to something else"
                module.embed_tokens.weight = held
            self.hold(expected.name, held)


def check_runnable(model: ModelSpec, tokens_per_sequence: int = 1) -> None:
    """InputError if the blocks here do not cover the model, or sequences so long."""
    problems = uncovered(model, tokens_per_sequence)
    if problems:
        raise InputError.single(f"model {model.name}", "; ".join(problems))


def initialise(parameter: Tensor, whole: Parameter, parts: Sequence[Shard], seed: int, num_blocks: int) -> None:
    """Fill the held parts in place: norms with 1, biases with 0, matrices from N(0, 0.02), those that write to the
    residual stream scaled down by 1 / sqrt(2 * blocks) (Radford et al., GPT-2, 2019, section 2.3)."""
    with torch.no_grad():
        if parameter.dim() == 1:
            parameter.fill_(0.0 if whole.name.endswith(".bias") else 1.0)
            return
        generator = torch.Generator().manual_seed(_seed_of(seed, whole.name))
        residual = whole.name.endswith(("o_proj.weight", "down_proj.weight", "c_proj.weight"))
        std = INITIAL_STD / math.sqrt(2 * num_blocks) if residual else INITIAL_STD
        values = torch.empty(whole.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
        parameter.copy_(held_part(values, parts))


def held_part(whole: Tensor, parts: Sequence[Shard]) -> Tensor:
    """What a rank that holds `parts` has of a whole parameter."""
    if parts[0].dim is None:
        return whole
    dim = parts[0].dim
    return torch.cat([whole.narrow(dim, part.start, part.stop - part.start) for part in parts], dim)


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest(), "little")


def _empty_layer(model: ModelSpec, layer: int, ranks: TensorGroup) -> nn.Module:
    kind, is_gpt = layer_kind(model, layer), model.family is ModelFamily.GPT
    if kind is LayerKind.EMBEDDING:
        return gpt.Embedding(model, ranks) if is_gpt else Embedding(model, ranks)
    if kind is LayerKind.HEAD:
        return Head(model, ranks, nn.LayerNorm) if is_gpt else Head(model, ranks)
    return gpt.Block(model, ranks) if is_gpt else Block(model, ranks)
