"""Bytes that a stage holds on its device, by named part."""

from collections.abc import Iterable

from polyreme.layout.layers import layer_kind, parameters
from polyreme.layout.owners import shards
from polyreme.specs.device import DeviceKind
from polyreme.specs.fields import PRECISION_BYTES, LayerKind, Precision, Recompute
from polyreme.specs.model import ModelSpec
from polyreme.specs.profile import ProfileSpec

CONTEXT_BYTES = 1.6e9
"""What an accelerator's runtime takes before the first tensor; 1.6 GB on A100 by the BLOOM training notes."""
_NO_CONTEXT = frozenset({"cpu", "emulated", "ipu"})


def state_bytes(num_parameters: int, precision: Precision) -> dict[str, float]:
    """Weights, gradients, master weights and AdamW moments.

    Full precision: the weights are the masters. 16 bit: gradients, masters and moments in fp32 (Micikevicius et al.,
    arXiv 1710.03740, section 3; Rajbhandari et al., arXiv 1910.02054, section 3.1, with fp32 gradients).
    """
    size = PRECISION_BYTES[precision]
    full = max(size, 4.0)
    parts = {"weights": size, "gradients": full, "optimizer": 2 * full}
    if size < full:
        parts["master_weights"] = full
    return {part: num_parameters * each for part, each in parts.items()}


def stage_parameters(model: ModelSpec, layers: Iterable[int], tp: int = 1, index: int = 0) -> int:
    """Parameters that tensor rank `index` of `tp` holds of some layers, shared ones counted once."""
    held = {p.name: p for layer in layers for p in parameters(model, layer)}
    if tp == 1:
        return sum(parameter.num_elements for parameter in held.values())
    return sum(
        parameter.num_elements * (shard.stop - shard.start) // parameter.length
        for parameter in held.values()
        for shard in shards(parameter, tp, index)
    )


def activation_bytes(
    model: ModelSpec,
    layer: int,
    precision: Precision,
    sequences: int,
    tokens_per_sequence: int,
    kind: DeviceKind,
    profile: ProfileSpec | None = None,
    *,
    tp: int = 1,
    recompute: Recompute = Recompute.NONE,
) -> float:
    """What forward of one microbatch keeps for backward on one rank: as measured on this kind, else counted by tensor.

    Tensor ranks share everything but the inputs of the matrices, which they gather whole (Korthikanti et al.,
    arXiv 2205.05198, equation 4, without its re-gathering).
    """
    tokens = sequences * tokens_per_sequence
    what = layer_kind(model, layer)
    hidden, size = model.hidden_size, PRECISION_BYTES[precision]
    if what is LayerKind.BLOCK and recompute is not Recompute.NONE:
        return tokens * _kept_elements(model, recompute) * size / tp
    gathered = 0.0 if what is LayerKind.EMBEDDING else tokens * hidden * size * (2 if what is LayerKind.BLOCK else 1)
    whole = _whole_bytes(model, what, precision, sequences, tokens_per_sequence, kind, profile)
    return whole if tp == 1 else min(whole, gathered) + max(0.0, whole - gathered) / tp


def _kept_elements(model: ModelSpec, recompute: Recompute) -> float:
    """Elements per token that a block keeps: its input; with selective recompute also every matrix's output."""
    hidden = model.hidden_size
    if recompute is Recompute.FULL:
        return float(hidden)
    width, key_value = model.num_heads * model.head_width, model.kv_heads * model.head_width
    return 3.0 * hidden + 2 * width + 2 * key_value + 2 * model.ffn_hidden_size


def _whole_bytes(
    model: ModelSpec,
    what: LayerKind,
    precision: Precision,
    sequences: int,
    tokens_per_sequence: int,
    kind: DeviceKind,
    profile: ProfileSpec | None,
) -> float:
    """Bytes on a single device that recomputes nothing."""
    if profile is not None:
        for timing in profile.layers:
            wanted = (what, precision, tokens_per_sequence, kind.name)
            if (timing.layer, timing.precision, timing.tokens_per_sequence, timing.device) == wanted:
                return timing.activation_bytes * sequences / timing.sequences
    tokens = sequences * tokens_per_sequence
    hidden, size = model.hidden_size, PRECISION_BYTES[precision]
    if what is LayerKind.EMBEDDING:
        return 8.0 * tokens
    if what is LayerKind.HEAD:
        return tokens * (2 * hidden * size + 2 * model.vocab_size * max(size, 4.0))
    width, key_value = model.num_heads * model.head_width, model.kv_heads * model.head_width
    experts = model.experts_per_token or 1
    elements = 4 * hidden + 2 * width + 2 * key_value + 4 * model.ffn_hidden_size * experts
    return tokens * (elements * size + 4.0 * model.num_heads)


def context_bytes(kind: DeviceKind) -> float:
    """Bytes that the device's runtime takes."""
    return 0.0 if kind.driver in _NO_CONTEXT else CONTEXT_BYTES
