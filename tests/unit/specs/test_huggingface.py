"""A Hugging Face config becomes a model spec; its faults speak of the config's own keys and lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from spec_samples import GPT2, HUGGINGFACE

from polyreme.errors import InputError
from polyreme.layout.layers import parameter_count
from polyreme.specs.io import load_model
from polyreme.specs.model import ModelFamily, ModelSpec


def load(tmp_path: Path, text: str, changes: dict[str, Any] | None = None) -> ModelSpec:
    path = tmp_path / "config.json"
    data = json.loads(text) | (changes or {})
    path.write_text(json.dumps({key: value for key, value in data.items() if value != "absent"}, indent=2))
    return load_model(path)


def faults(tmp_path: Path, text: str, changes: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text, changes)
    return [str(fault).replace(f"{tmp_path}/", "") for fault in caught.value.faults]


def test_a_llama_config_becomes_a_llama_model(tmp_path: Path) -> None:
    model = load(tmp_path, HUGGINGFACE)
    assert model == ModelSpec(
        name=tmp_path.name,
        family=ModelFamily.LLAMA,
        num_layers=22,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=4,
        ffn_hidden_size=5632,
        vocab_size=32000,
        max_sequence_length=2048,
        rope_theta=500_000.0,
        rope_scaling="llama3",
        norm_eps=1e-5,
    )


def test_a_gpt2_config_is_tied_and_has_the_published_size(tmp_path: Path) -> None:
    model = load(tmp_path, GPT2)
    assert (model.family, model.tied_embedding, model.ffn_hidden_size) == (ModelFamily.GPT, True, 3072)
    assert parameter_count(model) == 124_439_808


def test_a_mixtral_config_has_experts(tmp_path: Path) -> None:
    changes = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    model = load(tmp_path, HUGGINGFACE, changes)
    assert (model.family, model.num_experts, model.experts_per_token) == (ModelFamily.MOE, 8, 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_attention_heads": "32"}, ["config.json:10: num_attention_heads: got '32'"]),
        ({"num_attention_heads": 24}, ["config.json:7: hidden_size 2048 is not a multiple of num_attention_heads 24"]),
        (
            {"num_key_value_heads": 5},
            ["config.json:10: num_attention_heads 32 is not a multiple of num_key_value_heads 5"],
        ),
        ({"head_dim": 63}, ["config.json:1: head size 63 is odd"]),
        (
            {"vocab_size": -1, "rms_norm_eps": "x"},
            ["config.json:20: vocab_size: got -1", "config.json:13: rms_norm_eps: got 'x'"],
        ),
        (
            {"hidden_size": "absent", "intermediate_size": None},
            ["config.json: hidden_size: is required", "config.json:7: intermediate_size: is required"],
        ),
        ({"rope_scaling": {"rope_type": 3}}, ["config.json:15: rope_scaling.rope_type: got 3"]),
        ({"tie_word_embeddings": "no"}, ["config.json:19: tie_word_embeddings: got 'no'"]),
        ({"attention_bias": True, "mlp_bias": True}, ["config.json:6: attention_bias", "config.json:21: mlp_bias"]),
        ({"model_type": "bert"}, ["config.json:5: model_type: 'bert' is not supported; supported: gpt2, llama"]),
        ({"model_type": ["llama"]}, ["config.json:5: model_type: ['llama'] is not supported"]),
    ],
)
def test_a_fault_names_the_key_of_the_config_and_its_line(
    changes: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    found = faults(tmp_path, HUGGINGFACE, changes)
    assert len(found) == len(expected), found
    for fault, start in zip(sorted(found), sorted(expected), strict=True):
        assert fault.startswith(start)


def test_a_fault_of_gpt2_names_its_own_keys_once(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, GPT2, {"n_embd": 10**20})
    assert fault.startswith("config.json:4: n_embd: got 100000000000000000000")
    (fault,) = faults(tmp_path, GPT2, {"n_embd": 770})
    assert fault.startswith("config.json:4: n_embd 770 is not a multiple of n_head 12")
    (fault,) = faults(tmp_path, GPT2, {"n_positions": "absent"})
    assert fault == "config.json:1: family gpt has learned positions and needs n_positions"


def test_a_null_means_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, GPT2, {"tie_word_embeddings": None, "n_inner": None}).tied_embedding
    assert load(tmp_path, HUGGINGFACE, {"num_key_value_heads": None}).kv_heads == 32
