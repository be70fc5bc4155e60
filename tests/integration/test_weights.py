"""Weights saved by one plan are those that another plan and Hugging Face load, and neither way takes much memory."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from gradient_worker import run_workers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saving_worker import BAND_FILE, saving_main
from small_run import NUM_LAYERS, NUM_TOKENS, inputs, pipeline, tiny_gpt, tiny_model, write_text
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from polyreme.models.build import StageLayers
from polyreme.models.llama import IGNORED_LABEL
from polyreme.specs.fields import Precision, ScheduleName
from polyreme.specs.io import load_model
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Pipeline
from polyreme.training.corpus import open_corpus
from polyreme.training.load import initial_fill
from polyreme.training.run import run
from polyreme.training.runnable import Inputs, check_runnable
from polyreme.training.weights import INDEX_FILE, huggingface_config

FP64 = Precision.FP64
MODELS = [tiny_model(), tiny_model(tied=True), tiny_gpt(), tiny_gpt(tied=True)]
MIB = 2**20


def folded() -> list[Pipeline]:
    groups = [[(2, 2)]] * 4
    return [pipeline("a", [1, 3, 4], 4, ScheduleName.ZB_V, precision=FP64, groups=groups, places=[0, 1, 1, 0])]


def unequal() -> list[Pipeline]:
    groups = [[(1, 2)], [(1, 1)], [(1, 2)]]
    return [
        pipeline("a", [3], 2, ScheduleName.ONE_F_ONE_B, precision=FP64),
        pipeline("b", [2, 4], 4, ScheduleName.GPIPE, base=2, microbatch_sequences=1, precision=FP64, groups=groups),
    ]


def first_batch(given: Inputs) -> tuple[Tensor, Tensor]:
    corpus, seed, sequences = open_corpus(given.job.data, given.base), given.job.seed, given.plan.batch.sequences
    tokens = torch.zeros((sequences, NUM_TOKENS), dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED_LABEL)
    for row in range(sequences):
        content = list(corpus.read(corpus.window(seed, 0, row, NUM_TOKENS)))
        tokens[row, : len(content) - 1] = torch.tensor(content[:-1])
        labels[row, : len(content) - 1] = torch.tensor(content[1:])
    return tokens, labels


def loss_in_one_process(given: Inputs, weights: dict[str, Tensor]) -> float:
    layers = StageLayers(given.model, 0, NUM_LAYERS, 0, torch.float64)
    assert layers.named.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in layers.named.items():
            parameter.copy_(weights[name])
        tokens, labels = first_batch(given)
        return float(layers(tokens, labels) / int((labels != IGNORED_LABEL).sum()))


def loss_in_transformers(given: Inputs, folder: Path) -> float:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokens, labels = first_batch(given)
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    return float(functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.family}-tied={model.tied_embedding}")
def test_weights_of_a_folded_tensor_parallel_run_go_on_in_unequal_pipelines(model: ModelSpec, tmp_path: Path) -> None:
    data = write_text(tmp_path / "text")
    folder = run(inputs(folded(), data, precision=FP64, steps=2, model=model), tmp_path / "one").run_dir / "weights"
    places = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        content = load_file(file)
        assert {name for name, place in places.items() if place == file.name} == content.keys()
        weights |= content
    assert weights.keys() == places.keys()
    assert len(set(places.values())) > 1

    given = inputs(unequal(), data, precision=FP64, model=model)
    job = dataclasses.replace(given.job, initial_weights="one/weights")
    given = dataclasses.replace(given, job=job, base=tmp_path)
    due = loss_in_one_process(given, weights)
    assert run(given, tmp_path / "two").steps[0].loss == pytest.approx(due, rel=1e-10)
    exact = model.family == "gpt"  # Hugging Face computes norms and positions of a llama in fp32
    assert loss_in_transformers(given, folder) == pytest.approx(due, rel=1e-10 if exact else 1e-6)


@pytest.mark.parametrize("max_shard_size", ["1GB", "40KB"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.family}-tied={model.tied_embedding}")
def test_what_transformers_saves_is_loaded(model: ModelSpec, max_shard_size: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(**huggingface_config(model, FP64))
    theirs = AutoModelForCausalLM.from_config(config).double()
    theirs.save_pretrained(tmp_path / "weights", max_shard_size=max_shard_size)
    assert (tmp_path / "weights" / INDEX_FILE).exists() == (max_shard_size == "40KB")
    given = inputs(unequal(), write_text(tmp_path / "text"), precision=FP64, model=model)
    given = dataclasses.replace(given, job=dataclasses.replace(given.job, initial_weights="weights"), base=tmp_path)
    check_runnable(given)
    layers = StageLayers(model, 0, NUM_LAYERS, 0, torch.float64, fill=initial_fill(given.job, tmp_path, model))
    saved = dict(theirs.named_parameters())
    assert layers.named.keys() == saved.keys()
    assert all(torch.equal(parameter, saved[name]) for name, parameter in layers.named.items())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.family}-tied={model.tied_embedding}")
def test_the_config_beside_saved_weights_is_read_as_the_same_model(model: ModelSpec, tmp_path: Path) -> None:
    one = pipeline("a", [3], 2, ScheduleName.GPIPE)
    run(inputs([one], write_text(tmp_path / "text"), model=model), tmp_path / "run")
    again = load_model(tmp_path / "run" / "weights" / "config.json")
    given = dataclasses.replace(model, num_kv_heads=model.kv_heads, head_size=model.head_width)
    most = again.max_sequence_length
    again = dataclasses.replace(again, num_kv_heads=again.kv_heads, head_size=again.head_width)
    assert again == dataclasses.replace(given, name=again.name, max_sequence_length=most)
    assert most == (model.max_sequence_length or 2048)


@pytest.mark.parametrize(("precision", "dtype"), [(Precision.BF16, torch.bfloat16), (Precision.FP16, torch.float16)])
def test_weights_of_two_bytes_are_saved_and_loaded_as_they_are(
    precision: Precision, dtype: torch.dtype, tmp_path: Path
) -> None:
    one = pipeline("a", [3], 2, ScheduleName.GPIPE, precision=precision, groups=[[(2, 2)], [(2, 1)]])
    given = inputs([one], write_text(tmp_path / "text"), precision=precision, model=tiny_gpt())
    folder = run(given, tmp_path / "run").run_dir / "weights"
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    job = dataclasses.replace(given.job, initial_weights=str(folder))
    ours = StageLayers(given.model, 0, NUM_LAYERS, 0, dtype, fill=initial_fill(job, tmp_path, given.model))
    for name, parameter in theirs.named_parameters():
        assert parameter.dtype is dtype
        assert torch.equal(parameter, ours.named[name]), name


def save_and_load(model: ModelSpec, tmp_path: Path, pipelines: list[Pipeline], band_bytes: int) -> list[dict[str, int]]:
    """Memory of each worker that loads weights from `tmp_path / "given"` and saves them again."""
    layers = StageLayers(model, 0, model.num_layers + 2, seed=3)
    (tmp_path / "given").mkdir()
    save_file({n: p.detach() for n, p in layers.named.items()}, tmp_path / "given" / "model.safetensors")
    (tmp_path / BAND_FILE).write_text(str(band_bytes))
    given = inputs(pipelines, write_text(tmp_path / "text"), model=model)
    job = dataclasses.replace(given.job, initial_weights="given")
    run_workers(dataclasses.replace(given, job=job, base=tmp_path), tmp_path / "run", saving_main)
    return [json.loads(file.read_text()) for file in sorted((tmp_path / "run").glob("memory-*.json"))]


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory figures of Linux")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.family}-tied={model.tied_embedding}")
@pytest.mark.parametrize("band_bytes", [1, 1000])
def test_what_is_saved_does_not_depend_on_the_bands(model: ModelSpec, band_bytes: int, tmp_path: Path) -> None:
    one = pipeline("a", [2, 4], 2, ScheduleName.GPIPE, groups=[[(2, 2)], [(1, 1), (1, 1)], [(2, 2)]])
    save_and_load(model, tmp_path, [one], band_bytes)
    given, saved = load_file(tmp_path / "given" / "model.safetensors"), {}
    for file in (tmp_path / "run" / "weights").glob("*.safetensors"):
        with safe_open(file, framework="pt") as content:
            assert content.metadata() == {"format": "pt"}
        saved |= load_file(file)
    assert saved.keys() == given.keys()
    assert all(torch.equal(saved[name], given[name]) for name in given)
    assert not [file for file in (tmp_path / "run" / "weights").iterdir() if file.suffix != ".safetensors"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory figures of Linux")
def test_loading_and_saving_take_one_part_and_two_bands_of_memory(tmp_path: Path) -> None:
    model = dataclasses.replace(tiny_model(), num_layers=1, hidden_size=512, head_size=128, vocab_size=40_000)
    groups = [[(2, 2)]] * 3
    one = pipeline("a", [1, 2], 1, ScheduleName.GPIPE, groups=groups, num_layers=3)
    whole_bytes, band_bytes, slack_bytes = 40_000 * 512 * 4, 2 * MIB, 8 * MIB
    memory = save_and_load(model, tmp_path, [one], band_bytes)
    assert [each["largest"] > MIB for each in memory] == [True, True, False, False, True, True]
    joining_bytes = memory[2]["loading"] - memory[2]["own"]  # a rank of the small block: what any worker takes
    for each in memory:
        assert each["largest"] <= whole_bytes // 2
        assert each["loading"] - each["own"] - joining_bytes <= each["largest"] + slack_bytes
        assert each["saving"] <= 2 * band_bytes + slack_bytes
