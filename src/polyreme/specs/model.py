"""The shape of a model: everything needed to count parameters, FLOPs and bytes, and to build it. No weights."""

from enum import StrEnum
from typing import Literal

from polyreme.specs.fields import Flag, PositiveFloat, PositiveInt, Text, spec


class ModelFamily(StrEnum):
    """`llama`: RMSNorm, rotary, SwiGLU. `gpt`: LayerNorm, learned positions, GELU. `moe`: llama with experts.

    `blocks`: modules of a person's own, whose shapes `polyreme import blocks` records.
    """

    LLAMA = "llama"
    GPT = "gpt"
    MOE = "moe"
    BLOCKS = "blocks"


@spec
class BlockSpec:
    """One module of family `blocks`: its class, and the shape of each parameter by its name in the whole model."""

    kind: Text
    parameters: dict[Text, tuple[PositiveInt, ...]]


@spec
class ModelSpec:
    """A decoder-only transformer. Sizes count elements; `ffn_hidden_size` is the width of one expert in a MoE.

    `code` (`net.py:blocks`, relative to the model file) and `blocks` belong to family blocks.
    """

    schema: Literal["polyreme.model/1"] = "polyreme.model/1"
    name: Text
    family: ModelFamily
    num_layers: PositiveInt
    hidden_size: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt | None = None
    head_size: PositiveInt | None = None
    ffn_hidden_size: PositiveInt
    vocab_size: PositiveInt
    max_sequence_length: PositiveInt | None = None
    tied_embedding: Flag = False
    rope_theta: PositiveFloat = 10_000.0
    rope_scaling: Text | None = None
    attention_window: PositiveInt | None = None
    norm_eps: PositiveFloat = 1e-5
    num_experts: PositiveInt | None = None
    experts_per_token: PositiveInt | None = None
    code: Text | None = None
    blocks: tuple[BlockSpec, ...] | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.head_size is None and self.hidden_size % self.num_heads:
            problems.append(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; "
                "change one, or give head_size"
            )
        if self.num_heads % self.kv_heads:
            problems.append(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.kv_heads}")
        own = self.family is ModelFamily.BLOCKS
        if (self.code is not None, self.blocks is not None) != (own, own):
            problems.append("code and blocks belong to family blocks, which needs both; see `polyreme import blocks`")
        elif self.blocks is not None and len(self.blocks) != self.num_layers + 2:
            problems.append(f"{len(self.blocks)} blocks for num_layers {self.num_layers}, not two more than that")
        if self.family not in (ModelFamily.GPT, ModelFamily.BLOCKS) and self.head_width % 2:
            problems.append(f"head size {self.head_width} is odd; rotary positions need an even one")
        if self.family is ModelFamily.GPT and self.max_sequence_length is None:
            problems.append("family gpt has learned positions and needs max_sequence_length")
        experts, chosen = self.num_experts, self.experts_per_token
        if self.family is ModelFamily.MOE and (experts is None or chosen is None):
            problems.append("family moe needs num_experts and experts_per_token")
        elif self.family is not ModelFamily.MOE and (experts is not None or chosen is not None):
            problems.append(f"num_experts and experts_per_token belong to family moe, not {self.family}")
        elif experts is not None and chosen is not None and chosen > experts:
            problems.append(f"experts_per_token {chosen} is more than num_experts {experts}")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads; equal to num_heads unless grouped."""
        return self.num_kv_heads if self.num_kv_heads is not None else self.num_heads

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.head_size if self.head_size is not None else self.hidden_size // self.num_heads
