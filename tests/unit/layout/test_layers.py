"""Layers and parameters have the published names, shapes and totals."""

import dataclasses

import pytest

from polyreme.layout.layers import layer_kind, num_layers, parameter_count, parameters
from polyreme.specs.fields import LayerKind
from polyreme.specs.model import ModelFamily, ModelSpec

LLAMA_8B = ModelSpec(
    name="llama-3-8b",
    family=ModelFamily.LLAMA,
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    ffn_hidden_size=14336,
    vocab_size=128256,
)
LLAMA_70B = dataclasses.replace(LLAMA_8B, num_layers=80, hidden_size=8192, num_heads=64, ffn_hidden_size=28672)
MIXTRAL = dataclasses.replace(LLAMA_8B, family=ModelFamily.MOE, vocab_size=32000, num_experts=8, experts_per_token=2)


@pytest.mark.parametrize(
    ("model", "count"), [(LLAMA_8B, 8_030_261_248), (LLAMA_70B, 70_553_706_496), (MIXTRAL, 46_702_792_704)]
)
def test_a_published_model_has_its_published_size(model: ModelSpec, count: int) -> None:
    assert parameter_count(model) == count


def test_a_llama_block_has_the_names_and_shapes_of_hugging_face() -> None:
    assert {p.name: (p.shape, p.tp_dim) for p in parameters(LLAMA_8B, 32)} == {
        "model.layers.31.input_layernorm.weight": ((4096,), None),
        "model.layers.31.self_attn.q_proj.weight": ((4096, 4096), 0),
        "model.layers.31.self_attn.k_proj.weight": ((1024, 4096), 0),
        "model.layers.31.self_attn.v_proj.weight": ((1024, 4096), 0),
        "model.layers.31.self_attn.o_proj.weight": ((4096, 4096), 1),
        "model.layers.31.post_attention_layernorm.weight": ((4096,), None),
        "model.layers.31.mlp.gate_proj.weight": ((14336, 4096), 0),
        "model.layers.31.mlp.up_proj.weight": ((14336, 4096), 0),
        "model.layers.31.mlp.down_proj.weight": ((4096, 14336), 1),
    }


def test_the_ends_of_a_llama_are_embedding_norm_and_head() -> None:
    assert [(p.name, p.shape) for p in parameters(LLAMA_8B, 0)] == [("model.embed_tokens.weight", (128256, 4096))]
    assert [(p.name, p.shape) for p in parameters(LLAMA_8B, 33)] == [
        ("model.norm.weight", (4096,)),
        ("lm_head.weight", (128256, 4096)),
    ]


def test_a_tied_embedding_is_one_parameter_in_two_layers() -> None:
    tied = dataclasses.replace(LLAMA_8B, tied_embedding=True)
    assert parameters(tied, 0)[0] == parameters(tied, 33)[1]
    assert parameter_count(LLAMA_8B) - parameter_count(tied) == 128256 * 4096
    assert parameter_count(tied, 0, 1) == parameter_count(tied, 33) - 4096


def test_layers_are_counted_with_embedding_and_head() -> None:
    kinds = [layer_kind(LLAMA_8B, layer) for layer in range(num_layers(LLAMA_8B))]
    assert kinds == [LayerKind.EMBEDDING, *[LayerKind.BLOCK] * 32, LayerKind.HEAD]
    for layer in (-1, 34):
        with pytest.raises(IndexError, match=f"layer {layer} of a model of 34 layers"):
            layer_kind(LLAMA_8B, layer)
