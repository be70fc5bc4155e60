"""Finds a model's weights in safetensors files and checks names and shapes, by headers alone, without a framework."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from polyreme.errors import Fault, InputError
from polyreme.layout.layers import Parameter, num_layers, parameters
from polyreme.specs.documents import read_document
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.training.safetensors_header import ELEMENT_BYTES, TensorEntry, read_header
from polyreme.training.weights import INDEX_FILE

SINGLE_FILE = "model.safetensors"
HEAD = "lm_head.weight"
_NOT_WEIGHTS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)$")
"""Constants that some files hold beside the weights: rotary frequencies and causal masks."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a parameter's values are: a tensor of a file, under the name that it has there."""

    file: Path
    name: str
    entry: TensorEntry


def stored_parameters(path: Path, model: ModelSpec) -> dict[str, StoredTensor]:
    """Parameter name -> its tensor. `path` is a folder, a safetensors file or an index.

    InputError names every tensor that is missing, of another shape or type, or not of this model.
    """
    held = _tensors(path)
    due = {one.name: one for layer in range(num_layers(model)) for one in parameters(model, layer)}
    found = {name: held[stored] for name in due if (stored := _stored_name(name, held, model)) is not None}
    used = {tensor.name for tensor in found.values()}
    extra = [name for name in held if name not in used and not _NOT_WEIGHTS.search(name)]
    faults = [
        *(_missing(path, name, model) for name in due if name not in found),
        *(_extra(held[name], model) for name in extra),
        *(fault for name, tensor in found.items() for fault in _unlike(tensor, due[name])),
    ]
    if faults:
        raise InputError(faults)
    return found


def _stored_name(name: str, held: Mapping[str, StoredTensor], model: ModelSpec) -> str | None:
    """The name as it is, or without its first part: files of a model without a head leave that out."""
    bare = name.removeprefix("transformer." if model.family is ModelFamily.GPT else "model.")
    return name if name in held else bare if bare in held else None


def _tensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint by its name there."""
    file = _main_file(path)
    if file.suffix != ".json":
        return {name: StoredTensor(file, name, entry) for name, entry in read_header(file).items()}
    listed = _weight_map(file)
    headers = {name: read_header(file.parent / name) for name in sorted(set(listed.values()))}
    faults = [
        Fault(source=str(file), path=name, problem=f"{place} does not hold it", fix="fetch or write both again")
        for name, place in listed.items()
        if name not in headers[place]
    ]
    if faults:
        raise InputError(faults)
    return {name: StoredTensor(file.parent / place, name, headers[place][name]) for name, place in listed.items()}


def _main_file(path: Path) -> Path:
    if path.is_dir():
        names = (SINGLE_FILE, INDEX_FILE)
        found = next((path / name for name in names if (path / name).is_file()), None)
        if found is None:
            raise InputError.single(str(path), f"holds neither {' nor '.join(names)}", fix="give another folder")
        return found
    if not path.is_file():
        raise InputError.single(str(path), "does not exist", fix="correct initial_weights in the job file")
    return path


def _weight_map(index: Path) -> dict[str, str]:
    data = read_document(index).data
    listed = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(listed, dict) or not all(_is_file_name(place) for place in listed.values()):
        problem = "has no weight_map from names of tensors to names of files in its folder"
        raise InputError.single(str(index), problem, fix="give the index of safetensors files")
    return listed


def _is_file_name(place: object) -> bool:
    return isinstance(place, str) and place.endswith(".safetensors") and Path(place).name == place


def _missing(path: Path, name: str, model: ModelSpec) -> Fault:
    fix = None
    if name == HEAD:
        fix = "set tied_embedding: true in the model file if the head uses the embedding's matrix"
    return Fault(source=str(path), path=name, problem=f"is missing; {model.name} has it", fix=fix)


def _extra(tensor: StoredTensor, model: ModelSpec) -> Fault:
    problem, fix = f"is no parameter of {model.name}", "give the model file that belongs to the weights"
    if tensor.name == HEAD and model.tied_embedding:
        problem = f"is there, but the head of {model.name} uses the embedding's matrix"
        fix = "set tied_embedding: false in the model file, or take the tensor out"
    return Fault(source=str(tensor.file), path=tensor.name, problem=problem, fix=fix)


def _unlike(tensor: StoredTensor, due: Parameter) -> Iterator[Fault]:
    source, entry = str(tensor.file), tensor.entry
    if entry.shape != due.shape:
        problem = f"has shape {list(entry.shape)}, the model has {list(due.shape)}"
        yield Fault(source=source, path=tensor.name, problem=problem)
    if entry.dtype not in ELEMENT_BYTES:
        problem = f"has dtype {entry.dtype}; {', '.join(ELEMENT_BYTES)} can be read"
        yield Fault(source=source, path=tensor.name, problem=problem)
