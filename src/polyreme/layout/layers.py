"""Layers and parameters of a model: the one owner of layer numbers, parameter names and shapes.

Layer 0 is the embedding, layers 1 to num_layers are the blocks, the last is the head (final norm, output matrix, loss).
Parameters carry the names that Hugging Face gives them, so saved weights load there as they are.
"""

from dataclasses import dataclass
from math import prod

from polyreme.specs.fields import LayerKind
from polyreme.specs.model import ModelFamily, ModelSpec


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of a parameter's tp dim that is cut by itself, in whole `granules`: heads, for attention."""

    length: int
    granule: int = 1


@dataclass(frozen=True, slots=True)
class Parameter:
    """One weight. `tp_dim` is the tensor dim that tensor parallelism cuts; None: every rank holds it whole.

    `sections` make up that dim, one unless the parameter joins several matrices; empty: one section of single elements.
    """

    name: str
    shape: tuple[int, ...]
    tp_dim: int | None = None
    sections: tuple[Section, ...] = ()

    @property
    def num_elements(self) -> int:
        """Elements of the whole parameter."""
        return prod(self.shape)

    @property
    def length(self) -> int:
        """Size of the dim that is cut, of the first one where none is."""
        return self.shape[self.tp_dim or 0]


def num_layers(model: ModelSpec) -> int:
    """Layers of a model, embedding and head counted: the `stop` of the last stage of every pipeline."""
    return model.num_layers + 2


def layer_kind(model: ModelSpec, layer: int) -> LayerKind:
    """Kind of layer number `layer`. IndexError outside the model."""
    if not 0 <= layer < num_layers(model):
        raise IndexError(f"layer {layer} of a model of {num_layers(model)} layers")
    if layer == 0:
        return LayerKind.EMBEDDING
    return LayerKind.HEAD if layer == model.num_layers + 1 else LayerKind.BLOCK


def parameters(model: ModelSpec, layer: int) -> tuple[Parameter, ...]:
    """Parameters of one layer, in order. A tied head lists the embedding's matrix again: one name in two layers."""
    kind = layer_kind(model, layer)
    if model.blocks is not None:
        return tuple(Parameter(name, shape) for name, shape in model.blocks[layer].parameters.items())
    if kind is LayerKind.BLOCK:
        return _gpt_block(model, layer - 1) if model.family is ModelFamily.GPT else _llama_block(model, layer - 1)
    gpt = model.family is ModelFamily.GPT
    embedding = "transformer.wte.weight" if gpt else "model.embed_tokens.weight"
    matrix = (model.vocab_size, model.hidden_size)
    if kind is LayerKind.EMBEDDING:
        found = [Parameter(embedding, matrix, 0)]
        if gpt and model.max_sequence_length is not None:
            found.append(Parameter("transformer.wpe.weight", (model.max_sequence_length, model.hidden_size)))
        return tuple(found)
    head = Parameter(embedding if model.tied_embedding else "lm_head.weight", matrix, 0)
    norm = _layer_norm("transformer.ln_f", model) if gpt else (Parameter("model.norm.weight", (model.hidden_size,)),)
    return (*norm, head)


def parameter_count(model: ModelSpec, start: int = 0, stop: int | None = None) -> int:
    """Parameters in layers [start, stop), a parameter that two of them share counted once."""
    layers = range(start, num_layers(model) if stop is None else stop)
    return sum({p.name: p.num_elements for layer in layers for p in parameters(model, layer)}.values())


def _head_sections(model: ModelSpec) -> tuple[Section, Section]:
    """(queries, keys or values): both cut into whole key/value heads with the query heads that share them."""
    shared = model.num_heads // model.kv_heads
    query = Section(model.num_heads * model.head_width, shared * model.head_width)
    return query, Section(model.kv_heads * model.head_width, model.head_width)


def _llama_block(model: ModelSpec, block: int) -> tuple[Parameter, ...]:
    name, hidden, ffn = f"model.layers.{block}", model.hidden_size, model.ffn_hidden_size
    query, key_value = _head_sections(model)
    attention = (
        Parameter(f"{name}.input_layernorm.weight", (hidden,)),
        Parameter(f"{name}.self_attn.q_proj.weight", (query.length, hidden), 0, (query,)),
        Parameter(f"{name}.self_attn.k_proj.weight", (key_value.length, hidden), 0, (key_value,)),
        Parameter(f"{name}.self_attn.v_proj.weight", (key_value.length, hidden), 0, (key_value,)),
        Parameter(f"{name}.self_attn.o_proj.weight", (hidden, query.length), 1, (query,)),
        Parameter(f"{name}.post_attention_layernorm.weight", (hidden,)),
    )
    if model.num_experts is None:
        return (
            *attention,
            Parameter(f"{name}.mlp.gate_proj.weight", (ffn, hidden), 0),
            Parameter(f"{name}.mlp.up_proj.weight", (ffn, hidden), 0),
            Parameter(f"{name}.mlp.down_proj.weight", (hidden, ffn), 1),
        )
    moe = f"{name}.block_sparse_moe"
    experts = [
        Parameter(f"{moe}.experts.{expert}.{matrix}.weight", shape, dim)
        for expert in range(model.num_experts)
        for matrix, shape, dim in (("w1", (ffn, hidden), 0), ("w2", (hidden, ffn), 1), ("w3", (ffn, hidden), 0))
    ]
    return (*attention, Parameter(f"{moe}.gate.weight", (model.num_experts, hidden)), *experts)


def _gpt_block(model: ModelSpec, block: int) -> tuple[Parameter, ...]:
    """GPT-2's matrices are stored (in, out)."""
    name, hidden, ffn = f"transformer.h.{block}", model.hidden_size, model.ffn_hidden_size
    query, key_value = _head_sections(model)
    joined = (query, key_value, key_value)
    width = sum(section.length for section in joined)
    return (
        *_layer_norm(f"{name}.ln_1", model),
        Parameter(f"{name}.attn.c_attn.weight", (hidden, width), 1, joined),
        Parameter(f"{name}.attn.c_attn.bias", (width,), 0, joined),
        Parameter(f"{name}.attn.c_proj.weight", (query.length, hidden), 0, (query,)),
        Parameter(f"{name}.attn.c_proj.bias", (hidden,)),
        *_layer_norm(f"{name}.ln_2", model),
        Parameter(f"{name}.mlp.c_fc.weight", (hidden, ffn), 1),
        Parameter(f"{name}.mlp.c_fc.bias", (ffn,), 0),
        Parameter(f"{name}.mlp.c_proj.weight", (ffn, hidden), 0),
        Parameter(f"{name}.mlp.c_proj.bias", (hidden,)),
    )


def _layer_norm(name: str, model: ModelSpec) -> tuple[Parameter, ...]:
    return tuple(Parameter(f"{name}.{part}", (model.hidden_size,)) for part in ("weight", "bias"))
