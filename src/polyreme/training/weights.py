"""Names of the files that hold a run's final weights, and the index that makes them one Hugging Face checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyreme.layout.instances import instances
from polyreme.layout.layers import Parameter, parameters
from polyreme.specs.fields import PRECISION_BYTES, Precision
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Plan

INDEX_FILE = "model.safetensors.index.json"
_DTYPE_NAMES = {
    Precision.FP64: "float64",
    Precision.FP32: "float32",
    Precision.BF16: "bfloat16",
    Precision.FP16: "float16",
}


@dataclass(frozen=True, slots=True)
class Writing:
    """How one parameter comes to disk: `members` are the ranks whose parts make it whole, the first of them writes it.

    They are the tensor ranks of the (pipeline, stage) `place`; only one of them where every rank holds it whole.
    """

    parameter: Parameter
    place: tuple[str, int]
    members: tuple[int, ...]

    @property
    def writer(self) -> int:
        """The rank in whose file the parameter is."""
        return self.members[0]


def writings(plan: Plan, model: ModelSpec) -> tuple[Writing, ...]:
    """Every parameter of the model once, in layer order, from the first copy of the first stage that holds it."""
    first, found = instances(plan)[0], dict[str, Writing]()
    for index, stage in enumerate(first.pipeline.stages):
        group, ranks = first.groups(index)[0]
        for layer in range(*stage.layers):
            for one in parameters(model, layer):
                members = ranks[: 1 if one.tp_dim is None else group.tp]
                found.setdefault(one.name, Writing(one, (first.name, index), members))
    return tuple(found.values())


def shard_files(planned: Sequence[Writing]) -> dict[int, str]:
    """Rank -> the file that it writes."""
    ranks = sorted({one.writer for one in planned})
    return {rank: f"model-{number:05d}-of-{len(ranks):05d}.safetensors" for number, rank in enumerate(ranks, start=1)}


def weight_index(plan: Plan, model: ModelSpec, precision: Precision) -> dict[str, Any]:
    """Content of the index: every parameter name -> the file that it is in."""
    planned = writings(plan, model)
    files = shard_files(planned)
    total = sum(one.parameter.num_elements for one in planned) * int(PRECISION_BYTES[precision])
    weight_map = {one.parameter.name: files[one.writer] for one in planned}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def huggingface_config(model: ModelSpec, precision: Precision) -> dict[str, Any]:
    """The `config.json` that goes with the weights."""
    shape = _gpt2_config(model) if model.family is ModelFamily.GPT else _llama_config(model)
    return {
        **shape,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embedding,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": _DTYPE_NAMES[precision],
    }


def _gpt2_config(model: ModelSpec) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": model.num_layers,
        "n_embd": model.hidden_size,
        "n_head": model.num_heads,
        "n_inner": model.ffn_hidden_size,
        "n_positions": model.max_sequence_length,
        "layer_norm_epsilon": model.norm_eps,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def _llama_config(model: ModelSpec) -> dict[str, Any]:
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
        "max_position_embeddings": model.max_sequence_length or 2048,
        "rope_theta": model.rope_theta,
        "rms_norm_eps": model.norm_eps,
    }
