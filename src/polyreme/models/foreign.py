"""Models that a person gives as a list of blocks: any nn.Module, in a file of their own.

A worker makes the whole list, seeded alike everywhere, and keeps its own blocks: so the modules' own initialisation
gives every split the same weights. The first block takes token ids, each further one what the one before gave, the last
takes (hidden, labels) and gives the summed loss, or takes hidden states alone and gives logits.
"""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyreme.errors import Fault, InputError
from polyreme.models.layer_range import LayerRange
from polyreme.models.llama import IGNORED_LABEL
from polyreme.models.recompute import recomputed
from polyreme.models.tensor_parallel import TensorGroup
from polyreme.specs.fields import Recompute
from polyreme.specs.model import BlockSpec, ModelFamily, ModelSpec

MakeBlocks = Callable[[], list[nn.Module]]


class ForeignLayers(LayerRange):
    """Blocks [start, stop) of a person's list. InputError if the code does not give what the model file records."""

    def __init__(
        self,
        model: ModelSpec,
        start: int,
        stop: int,
        seed: int,
        make_blocks: MakeBlocks,
        dtype: torch.dtype = torch.float32,
        recompute: Recompute = Recompute.NONE,
        *,
        shared: Mapping[str, nn.Parameter] | None = None,
        torch_device: str = "cpu",
    ) -> None:
        super().__init__(dtype, torch_device, TensorGroup())
        self.recompute, self.ends = recompute, stop == model.num_layers + 2
        blocks = seeded(make_blocks, seed)
        names = name_parameters(blocks)
        _check(model, record(blocks))
        self.layers = nn.ModuleList(blocks[start:stop])
        self.to(torch_device, dtype)
        for module in self.layers:
            for parameter in dict.fromkeys(module.parameters()):
                name = names[id(parameter)]
                held = (shared or {}).get(name)
                if held is not None:
                    _replace(module, parameter, held)
                self.hold(name, parameter if held is None else held)

    def forward(self, value: Tensor, labels: Tensor | None = None) -> Tensor:
        """See `LayerRange`."""
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            if self.ends and number == last:
                return _loss(layer, value, labels)
            if value.is_floating_point():
                value = recomputed(layer, self.recompute, value, counted=self.products)
            else:
                value = layer(value)
        return value


def load_function(code: str, base: Path) -> MakeBlocks:
    """The function that `net.py:blocks` names, relative to `base`. Runs the file. InputError if it is not there."""
    file, _, function = code.partition(":")
    path = base / file
    if not function or not path.is_file():
        problem = f"{path} does not exist" if function else f"{code!r} names no function"
        raise InputError.single("model", problem, path="code", fix="write it like net.py:blocks")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        made = getattr(module, function)
    except Exception as error:
        problem = f"{path} cannot be loaded: {type(error).__name__}: {error}"
        raise InputError.single("model", problem, path="code") from error
    if not callable(made):
        raise InputError.single("model", f"{function} in {path} is no function", path="code")
    return made  # type: ignore[no-any-return]


def seeded(make_blocks: MakeBlocks, seed: int) -> list[nn.Module]:
    """The list, its initial values drawn from `seed` alone. InputError if it is no list of at least three modules."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            blocks = list(make_blocks())
        except Exception as error:
            problem = f"the function of the blocks raised {type(error).__name__}: {error}"
            raise InputError.single("model", problem, path="code") from error
    wrong = [type(one).__name__ for one in blocks if not isinstance(one, nn.Module)]
    if wrong or len(blocks) < 3:
        problem = f"a list of three or more modules was expected, it has {len(blocks)} entries"
        problem += f", of which {', '.join(wrong)} are no modules" if wrong else ""
        raise InputError.single("model", problem, path="code")
    return blocks


def name_parameters(blocks: list[nn.Module]) -> dict[int, str]:
    """Id of a parameter -> its global name, that of the first block that has it: tied weights have one name."""
    found: dict[int, str] = {}
    for number, block in enumerate(blocks):
        for name, parameter in block.named_parameters():
            found.setdefault(id(parameter), f"blocks.{number}.{name}")
    return found


def record(blocks: list[nn.Module]) -> tuple[BlockSpec, ...]:
    """What a model file says of the blocks."""
    names = name_parameters(blocks)
    return tuple(
        BlockSpec(
            kind=type(block).__name__,
            parameters={names[id(one)]: tuple(one.shape) for one in dict.fromkeys(block.parameters())},
        )
        for block in blocks
    )


def describe(code: str, base: Path, vocab_size: int | None) -> ModelSpec:
    """The model file of a list of blocks; the hidden size is that of what the first block makes of two tokens."""
    blocks = seeded(load_function(code, base), 0)
    embedding = next((one for one in blocks[0].modules() if isinstance(one, nn.Embedding)), None)
    vocab = vocab_size or (embedding.num_embeddings if embedding is not None else None)
    if vocab is None:
        problem = "the size of the vocabulary cannot be seen: the first block holds no nn.Embedding"
        raise InputError.single("model", problem, fix="give --vocab-size")
    with torch.no_grad():
        hidden = blocks[0](torch.zeros((1, 2), dtype=torch.int64))
    return ModelSpec(
        name=Path(code.partition(":")[0]).stem,
        family=ModelFamily.BLOCKS,
        num_layers=len(blocks) - 2,
        hidden_size=hidden.shape[-1],
        num_heads=1,
        ffn_hidden_size=1,
        vocab_size=vocab,
        code=code,
        blocks=record(blocks),
    )


def _check(model: ModelSpec, found: tuple[BlockSpec, ...]) -> None:
    recorded, fix = model.blocks or (), "run `polyreme import blocks` again"
    faults = []
    if len(found) != len(recorded):
        problem = f"{len(recorded)} are recorded, {len(found)} made"
        faults.append(Fault(source="model", path="blocks", problem=problem, fix=fix))
    for number, (due, got) in enumerate(zip(recorded, found, strict=False)):
        for name in sorted(due.parameters.keys() | got.parameters.keys()):
            shapes = due.parameters.get(name), got.parameters.get(name)
            if shapes[0] != shapes[1]:
                problem = f"{name} is recorded as {shapes[0]}, the code makes {shapes[1]}"
                faults.append(Fault(source="model", path=f"blocks[{number}]", problem=problem, fix=fix))
    if faults:
        raise InputError(faults)


def _loss(layer: nn.Module, value: Tensor, labels: Tensor | None) -> Tensor:
    """The block's own summed loss if it takes labels, else that of its logits."""
    if len(inspect.signature(layer.forward).parameters) > 1:
        loss: Tensor = layer(value, labels)
        return loss
    assert labels is not None
    logits = layer(value)
    precise = logits if logits.dtype is torch.float64 else logits.float()
    return functional.cross_entropy(
        precise.flatten(0, -2), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )


def _replace(module: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    for one in module.modules():
        for name, parameter in list(one.named_parameters(recurse=False)):
            if parameter is old:
                setattr(one, name, new)
