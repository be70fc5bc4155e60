"""Reads the shape of a model out of a Hugging Face `config.json`, as it is published."""

from typing import Any

from polyreme.errors import Fault, InputError
from polyreme.specs.documents import Document

_Keys = dict[str, tuple[str, ...]]

_LLAMA_KEYS: _Keys = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "ffn_hidden_size": ("intermediate_size",),
    "vocab_size": ("vocab_size",),
    "max_sequence_length": ("max_position_embeddings",),
    "tied_embedding": ("tie_word_embeddings",),
    "rope_theta": ("rope_theta",),
    "norm_eps": ("rms_norm_eps",),
    "attention_window": ("sliding_window",),
}
_MOE_KEYS: _Keys = _LLAMA_KEYS | {"num_experts": ("num_local_experts",), "experts_per_token": ("num_experts_per_tok",)}
_GPT_KEYS: _Keys = {
    "num_layers": ("n_layer",),
    "hidden_size": ("n_embd",),
    "num_heads": ("n_head",),
    "ffn_hidden_size": ("n_inner",),
    "vocab_size": ("vocab_size",),
    "max_sequence_length": ("n_positions", "n_ctx"),
    "norm_eps": ("layer_norm_epsilon",),
}
_FAMILIES: dict[str, tuple[str, _Keys]] = {
    "llama": ("llama", _LLAMA_KEYS),
    "mistral": ("llama", _LLAMA_KEYS),
    "mixtral": ("moe", _MOE_KEYS),
    "gpt2": ("gpt", _GPT_KEYS),
}
_REQUIRED = ("num_layers", "hidden_size", "num_heads", "vocab_size")
"""What a config that loads at all must say; the rest has defaults in transformers and in ModelSpec."""


def is_huggingface(data: Any) -> bool:
    """Whether the data is a Hugging Face config: it names a `model_type` and has no schema of ours."""
    return isinstance(data, dict) and "schema" not in data and ("model_type" in data or "architectures" in data)


def to_model_data(document: Document, name: str) -> dict[str, Any]:
    """Data of a ModelSpec. InputError names an unsupported type and every missing key."""
    data = document.data
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise InputError.single(
            document.where(("model_type",)),
            f"{kind!r} is not supported",
            path="model_type",
            fix=f"supported: {', '.join(sorted(_FAMILIES))}; or write the shape as model.yaml",
        )
    family, keys = _FAMILIES[kind]
    result: dict[str, Any] = {"name": name, "family": family}
    faults = []
    rope = data.get("rope_scaling") or data.get("rope_parameters")
    if isinstance(rope, dict):
        result |= {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
        scaling = rope.get("rope_type", rope.get("type", "default"))
        result |= {"rope_scaling": scaling} if scaling != "default" else {}
    for ours, theirs in keys.items():
        found = next((key for key in theirs if data.get(key) is not None), None)
        if found is not None:
            result[ours] = data[found]
        elif ours in _REQUIRED or (ours == "ffn_hidden_size" and family != "gpt"):
            faults.append(Fault(source=document.file, path=theirs[0], problem="is required but missing"))
    if family == "gpt":
        result.setdefault("tied_embedding", data.get("tie_word_embeddings", True))
        if isinstance(result.get("hidden_size"), int):
            result.setdefault("ffn_hidden_size", 4 * result["hidden_size"])
    faults += [
        Fault(source=document.where((key,)), path=key, problem="biases in a llama block are not supported")
        for key in ("attention_bias", "mlp_bias")
        if data.get(key)
    ]
    if faults:
        raise InputError(faults)
    return result
