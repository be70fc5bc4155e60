"""Reads the shape of a model out of a Hugging Face `config.json`, as it is published."""

import re
from dataclasses import dataclass, replace
from typing import Any

from polyreme.errors import Fault, InputError
from polyreme.specs.documents import DocPath, Document, format_path

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


@dataclass(frozen=True, slots=True)
class ModelData:
    """Data of a ModelSpec, and for each of its fields the path in the config that it came from or is missing at."""

    data: dict[str, Any]
    origins: dict[str, DocPath]

    def in_words_of(self, document: Document, fault: Fault) -> Fault:
        """The fault of a field as a fault of the config's key, at that key's line."""
        if fault.path in self.origins:
            origin = self.origins[fault.path]
            return replace(fault, source=document.where(origin), path=format_path(origin))
        named = [word for word in re.findall(r"\w+", fault.problem) if word in self.origins]
        problem = re.sub(r"\w+", lambda word: format_path(self.origins.get(word[0], (word[0],))), fault.problem)
        source = document.where(self.origins[named[0]]) if named else fault.source
        return replace(fault, source=source, problem=problem)


def to_model_data(document: Document, name: str) -> ModelData:
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
    origins: dict[str, DocPath] = {ours: (theirs[0],) for ours, theirs in keys.items()}
    faults = []
    _read_rope(data, result, origins)
    for ours, theirs in keys.items():
        found = next((key for key in theirs if data.get(key) is not None), None)
        if found is not None:
            result[ours], origins[ours] = data[found], (found,)
        elif ours in _REQUIRED or (ours == "ffn_hidden_size" and family != "gpt"):
            source = document.where((theirs[0],)) if theirs[0] in data else document.file
            faults.append(Fault(source=source, path=theirs[0], problem="is required but missing"))
    if family == "gpt":
        tied = data.get("tie_word_embeddings")
        result["tied_embedding"], origins["tied_embedding"] = tied is None or tied, ("tie_word_embeddings",)
        if "ffn_hidden_size" not in result and isinstance(result.get("hidden_size"), int | float):
            result["ffn_hidden_size"], origins["ffn_hidden_size"] = 4 * result["hidden_size"], origins["hidden_size"]
    faults += [
        Fault(source=document.where((key,)), path=key, problem="biases in a llama block are not supported")
        for key in ("attention_bias", "mlp_bias")
        if data.get(key)
    ]
    if faults:
        raise InputError(faults)
    return ModelData(result, origins)


def _read_rope(data: dict[str, Any], result: dict[str, Any], origins: dict[str, DocPath]) -> None:
    """Rotary settings that newer configs keep in a mapping of their own."""
    holder = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    rope = data.get(holder)
    if not isinstance(rope, dict):
        return
    if "rope_theta" in rope:
        result["rope_theta"], origins["rope_theta"] = rope["rope_theta"], (holder, "rope_theta")
    key = "rope_type" if "rope_type" in rope else "type"
    if rope.get(key, "default") != "default":
        result["rope_scaling"], origins["rope_scaling"] = rope[key], (holder, key)
