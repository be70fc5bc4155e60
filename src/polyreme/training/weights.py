"""Names of the files that hold a run's final weights, and the index that makes them one Hugging Face checkpoint."""

from typing import Any

from polyreme.layout.owners import atoms
from polyreme.specs.fields import PRECISION_BYTES, Precision
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan

INDEX_FILE = "model.safetensors.index.json"


def shard_file(rank: int, num_ranks: int) -> str:
    """File that `rank` writes."""
    return f"model-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"


def weight_index(plan: Plan, model: ModelSpec, precision: Precision) -> dict[str, Any]:
    """Content of the index: every parameter name -> the file of its first owner."""
    found = atoms(plan, model)
    weight_map = {atom.shard.parameter: shard_file(atom.owners[0], len(plan.workers)) for atom in found}
    total = sum(atom.num_elements for atom in found) * int(PRECISION_BYTES[precision])
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def huggingface_config(model: ModelSpec, precision: Precision) -> dict[str, Any]:
    """The `config.json` that goes with the weights of a llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_width,
        "intermediate_size": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_sequence_length or 2048,
        "tie_word_embeddings": model.tied_embedding,
        "rope_theta": model.rope_theta,
        "rms_norm_eps": model.norm_eps,
        "torch_dtype": {Precision.FP64: "float64", Precision.FP32: "float32"}.get(precision, str(precision)),
    }
