"""Weights are found under published names, and whatever does not fit the model is named before a worker starts."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_run import NUM_LAYERS, inputs, pipeline, tiny_gpt, tiny_model
from torch import Tensor

from polyreme.errors import InputError
from polyreme.layout.layers import parameters
from polyreme.layout.owners import shards
from polyreme.models.build import StageLayers, held_part
from polyreme.models.tensor_parallel import TensorGroup
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import TextData
from polyreme.specs.model import ModelSpec
from polyreme.training.initial_weights import stored_parameters
from polyreme.training.load import InitialWeights
from polyreme.training.runnable import check_runnable
from polyreme.training.weights import INDEX_FILE


def whole(model: ModelSpec, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    layers = StageLayers(model, 0, NUM_LAYERS, seed=11, dtype=dtype)
    return {name: parameter.detach() for name, parameter in layers.named.items()}


def save_single(folder: Path, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def save_indexed(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """Two files, every other tensor in the second."""
    folder.mkdir(parents=True)
    places = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def faults_of(path: Path, model: ModelSpec) -> list[str]:
    with pytest.raises(InputError) as caught:
        stored_parameters(path, model)
    return [f"{fault.path}: {fault.problem}; {fault.fix or ''}" for fault in caught.value.faults]


@pytest.mark.parametrize("model", [tiny_model(), tiny_gpt(tied=True)], ids=lambda model: str(model.family))
def test_a_folder_a_file_and_an_index_are_found(model: ModelSpec, tmp_path: Path) -> None:
    tensors = whole(model)
    one, many = save_single(tmp_path / "one", tensors), save_indexed(tmp_path / "many", tensors)
    for path in (one, one / "model.safetensors", many, many / INDEX_FILE):
        found = stored_parameters(path, model)
        assert found.keys() == tensors.keys()
        assert all(found[name].entry.shape == tuple(tensor.shape) for name, tensor in tensors.items())


def test_names_without_their_first_part_and_constants_beside_them_are_taken(tmp_path: Path) -> None:
    model = tiny_gpt(tied=True)
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in whole(model).items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 40, 40)
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    found = stored_parameters(save_single(tmp_path, tensors), model)
    assert found["transformer.h.3.attn.c_attn.bias"].name == "h.3.attn.c_attn.bias"
    llama = whole(tiny_model()) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    assert stored_parameters(save_single(tmp_path, llama), tiny_model()).keys() == whole(tiny_model()).keys()


def test_everything_that_does_not_fit_is_named(tmp_path: Path) -> None:
    tensors = whole(tiny_model())
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(32, 48)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.ones(48, 32, dtype=torch.int8)
    tensors["model.layers.4.mlp.up_proj.weight"] = torch.ones(48, 32)
    assert faults_of(save_single(tmp_path, tensors), tiny_model()) == [
        "model.norm.weight: is missing; tiny has it; ",
        "model.layers.4.mlp.up_proj.weight: is no parameter of tiny; give the model file that belongs to the weights",
        "model.layers.0.mlp.up_proj.weight: has shape [32, 48], the model has [48, 32]; ",
        "model.layers.1.mlp.up_proj.weight: has dtype I8; F64, F32, F16, BF16 can be read; ",
    ]


def test_a_head_that_is_tied_in_one_of_both_only_is_explained(tmp_path: Path) -> None:
    untied, tied = (whole(tiny_model(tied=tied)) for tied in (False, True))
    assert stored_parameters(save_single(tmp_path / "t", tied), tiny_model(tied=True)).keys() == tied.keys()
    (fault,) = faults_of(save_single(tmp_path / "u", untied), tiny_model(tied=True))
    assert fault.startswith("lm_head.weight: is there, but the head of tiny uses the embedding's matrix")
    assert "set tied_embedding: false" in fault
    (fault,) = faults_of(tmp_path / "t", tiny_model())
    assert fault.startswith("lm_head.weight: is missing")
    assert "set tied_embedding: true" in fault


def test_a_path_that_holds_no_weights_is_refused(tmp_path: Path) -> None:
    assert "holds neither model.safetensors nor" in faults_of(tmp_path, tiny_model())[0]
    assert "does not exist" in faults_of(tmp_path / "gone", tiny_model())[0]
    (tmp_path / "notes.txt").write_text("no weights here")
    assert "is not a whole safetensors file" in faults_of(tmp_path / "notes.txt", tiny_model())[0]


@pytest.mark.parametrize(
    "weight_map", [None, [], {"a": 1}, {"a": "../x.safetensors"}, {"a": "x.bin"}, {"a": "/x.safetensors"}]
)
def test_an_index_that_is_none_or_leads_out_of_its_folder_is_refused(weight_map: object, tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    assert "has no weight_map" in faults_of(tmp_path, tiny_model())[0]


def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path: Path) -> None:
    folder = save_indexed(tmp_path / "many", whole(tiny_model()))
    index = json.loads((folder / INDEX_FILE).read_text())
    places = index["weight_map"]
    places["lm_head.weight"] = next(file for file in places.values() if file != places["lm_head.weight"])
    (folder / INDEX_FILE).write_text(json.dumps(index))
    (fault,) = faults_of(folder, tiny_model())
    assert fault.startswith(f"lm_head.weight: {places['lm_head.weight']} does not hold it")
    (folder / "part-1.safetensors").unlink()
    assert "No such file" in faults_of(folder, tiny_model())[0]


def test_the_launcher_refuses_weights_of_another_model(tmp_path: Path) -> None:
    save_single(tmp_path, whole(tiny_gpt()))
    run = inputs([pipeline("a", [3], 2, ScheduleName.GPIPE)], TextData())
    job = dataclasses.replace(run.job, initial_weights=tmp_path.name)
    run = dataclasses.replace(run, job=job, base=tmp_path.parent)
    with pytest.raises(InputError, match=r"model\.embed_tokens\.weight: is missing; tiny has it"):
        check_runnable(run)
    save_single(tmp_path, whole(tiny_model()))
    check_runnable(run)


@pytest.mark.parametrize("model", [tiny_model(), tiny_gpt()], ids=lambda model: str(model.family))
@pytest.mark.parametrize("tp", [1, 2])
def test_a_rank_reads_its_own_parts_in_its_own_dtype(model: ModelSpec, tp: int, tmp_path: Path) -> None:
    tensors = whole(model, torch.bfloat16)
    fill = InitialWeights(stored_parameters(save_indexed(tmp_path / "many", tensors), model))
    due = {one.name: one for layer in range(NUM_LAYERS) for one in parameters(model, layer)}
    for index in range(tp):
        ranks = TensorGroup(index, tp)
        layers = StageLayers(model, 0, NUM_LAYERS, 0, torch.float64, ranks, fill=fill)
        for name, parameter in layers.named.items():
            parts = shards(due[name], tp, index)
            assert torch.equal(parameter, held_part(tensors[name].double(), parts)), name
