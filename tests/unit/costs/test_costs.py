"""Costs against figures known from elsewhere."""

import dataclasses

import pytest
from random_fleets import kind, small_model

from polyreme.catalog.entries import device_kinds
from polyreme.costs.comm import all_reduce_time_s, boundary_bytes, estimate_comm_time_s
from polyreme.costs.compute import layer_time
from polyreme.costs.flops import layer_work
from polyreme.costs.memory import stage_parameters, state_bytes
from polyreme.errors import InputError
from polyreme.layout.layers import num_layers
from polyreme.specs.device import LinkKind
from polyreme.specs.fields import LayerKind, Precision
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.profile import LayerTiming, ProfileSpec, Spread

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


def spread(median_s: float) -> Spread:
    return Spread(median_s=median_s, p10_s=0.9 * median_s, p90_s=1.2 * median_s, num_samples=9)


def timing(sequences: int, forward_s: float, backward_s: float) -> LayerTiming:
    return LayerTiming(
        device="cpu",
        layer=LayerKind.BLOCK,
        precision=Precision.FP32,
        sequences=sequences,
        tokens_per_sequence=64,
        forward=spread(forward_s),
        backward=spread(backward_s),
        update=spread(0.5),
        activation_bytes=1000 * sequences,
    )


def test_forward_of_llama_8b_is_two_flops_per_weight_and_token_plus_attention() -> None:
    tokens = 4096
    total = sum(layer_work(LLAMA_8B, layer, 1, tokens).forward_flops for layer in range(num_layers(LLAMA_8B)))
    matrices = stage_parameters(LLAMA_8B, range(1, 34)) - (2 * 32 + 1) * 4096
    attention = 32 * 2 * tokens * tokens * 4096
    assert total == pytest.approx(2 * matrices * tokens + attention)


def test_backward_is_twice_the_matmuls_and_attention() -> None:
    work = layer_work(LLAMA_8B, 1, 2, 1024)
    assert work.input_gradient_flops + work.weight_gradient_flops == pytest.approx(2 * work.forward_flops)


def test_a_token_of_a_moe_meets_only_the_experts_chosen_for_it() -> None:
    dense = dataclasses.replace(LLAMA_8B, name="dense")
    moe = dataclasses.replace(LLAMA_8B, family=ModelFamily.MOE, num_experts=8, experts_per_token=1)
    gate = 2 * 128 * 8 * 4096
    assert layer_work(moe, 1, 1, 128).forward_flops == pytest.approx(layer_work(dense, 1, 1, 128).forward_flops + gate)


@pytest.mark.parametrize(("precision", "each"), [(Precision.FP32, 16), (Precision.FP16, 18), (Precision.FP64, 32)])
def test_training_state_per_parameter(precision: Precision, each: int) -> None:
    assert sum(state_bytes(1000, precision).values()) == each * 1000


def test_a_profile_is_read_on_the_line_between_sizes_and_in_proportion_beyond() -> None:
    profile = ProfileSpec(created_by="t", model="m", layers=(timing(1, 1.0, 3.0), timing(4, 2.5, 6.0)), provenance={})
    cpu = dataclasses.replace(kind("cpu", 1e12, 1e9), driver="cpu")
    for sequences, forward_s, backward_s in ((1, 1.0, 3.0), (2, 1.5, 4.0), (4, 2.5, 6.0), (8, 5.0, 12.0)):
        time = layer_time(small_model(2), 1, cpu, Precision.FP32, sequences, 64, profile)
        assert time.forward_s == pytest.approx(forward_s)
        assert time.input_gradient_s + time.weight_gradient_s == pytest.approx(backward_s)
        assert time.low == pytest.approx(0.9)
        assert time.high == pytest.approx(1.2)


def test_a_kind_of_which_nothing_is_known_is_refused_with_a_way_out() -> None:
    unknown = dataclasses.replace(kind("x", 1e12, 1e9), peak_flops_per_s=None)
    with pytest.raises(InputError, match="polyreme profile"):
        layer_time(small_model(2), 1, unknown, Precision.FP32, 1, 64)


def test_a_large_block_on_an_a100_is_bound_by_its_matmul_rate() -> None:
    a100 = device_kinds()["a100-sxm-80g"]
    time = layer_time(LLAMA_8B, 1, a100, Precision.BF16, 1, 4096)
    flops = layer_work(LLAMA_8B, 1, 1, 4096).forward_flops
    assert 0.4 < flops / time.forward_s / 312e12 < 0.75


def test_messages_and_reductions_take_what_their_formulas_say() -> None:
    assert estimate_comm_time_s(1e9, 50e9, 2e-6) == pytest.approx(0.020002)
    assert boundary_bytes(LLAMA_8B, Precision.BF16, 2, 4096) == 2 * 4096 * 4096 * 2 + 64
    link = LinkKind(name="l", bandwidth_bytes_per_s=10e9, latency_s=1e-6)
    assert all_reduce_time_s(1e9, 4, link) == pytest.approx(6e-6 + 1.5 * 0.1)
    assert all_reduce_time_s(1e9, 1, link) == 0.0
