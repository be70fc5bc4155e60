"""Floating-point operations and bytes of one layer for one microbatch.

A multiply-add counts 2. Matmul work per token is 2 x weights (Kaplan et al., arXiv 2001.08361, table 1); causal
attention adds 2 x tokens x width per token for scores and values together (half of the full square).
"""

from dataclasses import dataclass

from polyreme.layout.layers import layer_kind, parameters
from polyreme.specs.fields import LayerKind
from polyreme.specs.model import ModelFamily, ModelSpec

_BLOCK_PASSES = 6
"""Passes of a block's forward over hidden states in memory: two norms, two residual sums, rotary, activation."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Work of one layer: FLOPs of forward, input gradient and weight gradient, and elements that forward moves."""

    forward_flops: float
    input_gradient_flops: float
    weight_gradient_flops: float
    forward_elements: float


def layer_work(model: ModelSpec, layer: int, sequences: int, tokens_per_sequence: int) -> LayerWork:
    """Work of `layer` for a microbatch of `sequences` x `tokens_per_sequence`."""
    tokens = sequences * tokens_per_sequence
    kind = layer_kind(model, layer)
    if kind is LayerKind.EMBEDDING:
        return LayerWork(0.0, 0.0, 0.0, 2.0 * tokens * model.hidden_size)
    if kind is LayerKind.HEAD:
        matmul = 2.0 * tokens * model.hidden_size * model.vocab_size
        return LayerWork(matmul, matmul, matmul, tokens * (3.0 * model.hidden_size + 4.0 * model.vocab_size))
    weights = active_matmul_weights(model, layer)
    matmul = 2.0 * tokens * weights
    attention = 2.0 * tokens * tokens_per_sequence * model.num_heads * model.head_width
    elements = tokens * (_BLOCK_PASSES * model.hidden_size + 2.0 * model.ffn_hidden_size) + weights
    return LayerWork(matmul + attention, matmul + 2.0 * attention, matmul, elements)


def active_matmul_weights(model: ModelSpec, layer: int) -> int:
    """Matrix elements that one token meets in a block: of a MoE only the experts chosen for it."""
    matrices = [parameter for parameter in parameters(model, layer) if len(parameter.shape) > 1]
    total = sum(parameter.num_elements for parameter in matrices)
    if model.family is ModelFamily.MOE and model.num_experts and model.experts_per_token:
        experts = sum(parameter.num_elements for parameter in matrices if ".experts." in parameter.name)
        total -= experts * (model.num_experts - model.experts_per_token) // model.num_experts
    return total
