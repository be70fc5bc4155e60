"""Llama layers: embedding, block (RMSNorm, rotary positions, grouped-query attention, SwiGLU), head with loss.

Each is built for one tensor rank and holds its part of every matrix; hidden states come and go cut by tokens.

Touvron et al., arXiv 2302.13971; rotary positions: Su et al., arXiv 2104.09864, in the half-split form that
Hugging Face weights use; SwiGLU: Shazeer, arXiv 2002.05202.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyreme.layout.owners import interval
from polyreme.models.tensor_parallel import TensorGroup, gather_tokens, scatter_sum, sharded_cross_entropy
from polyreme.specs.model import ModelSpec

IGNORED_LABEL = -100
"""Label of a position that does not count: padding after the end of a document."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dim. Zhang and Sennrich, arXiv 1910.07467, equation 4."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal self-attention with rotary positions; several query heads share one key/value head."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        first, last = interval(model.kv_heads, ranks.size, ranks.index)
        self.kv_heads, self.head_width = last - first, model.head_width
        self.num_heads = self.kv_heads * (model.num_heads // model.kv_heads)
        query, key_value = self.num_heads * self.head_width, self.kv_heads * self.head_width
        self.q_proj = nn.Linear(model.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(model.hidden_size, key_value, bias=False)
        self.v_proj = nn.Linear(model.hidden_size, key_value, bias=False)
        self.o_proj = nn.Linear(query, model.hidden_size, bias=False)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[sequences, own tokens, hidden] -> same shape."""
        hidden = gather_tokens(hidden, self.ranks)
        sequences, tokens, _ = hidden.shape
        query = self.q_proj(hidden).view(sequences, tokens, self.num_heads, self.head_width).transpose(1, 2)
        key = self.k_proj(hidden).view(sequences, tokens, self.kv_heads, self.head_width).transpose(1, 2)
        value = self.v_proj(hidden).view(sequences, tokens, self.kv_heads, self.head_width).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            _rotate(query, rotation),
            _rotate(key, rotation),
            value,
            is_causal=True,
            enable_gqa=self.num_heads != self.kv_heads,
        )
        return scatter_sum(self.o_proj(mixed.transpose(1, 2).reshape(sequences, tokens, -1)), self.ranks)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        first, last = interval(model.ffn_hidden_size, ranks.size, ranks.index)
        self.gate_proj = nn.Linear(model.hidden_size, last - first, bias=False)
        self.up_proj = nn.Linear(model.hidden_size, last - first, bias=False)
        self.down_proj = nn.Linear(last - first, model.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[sequences, own tokens, hidden] -> same shape."""
        hidden = gather_tokens(hidden, self.ranks)
        return scatter_sum(self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)), self.ranks)


class Embedding(nn.Module):
    """Token ids to vectors; a rank holds the rows of its part of the vocabulary."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        self.first, self.last = interval(model.vocab_size, ranks.size, ranks.index)
        self.embed_tokens = nn.Embedding(self.last - self.first, model.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """[sequences, tokens] ids -> [sequences, own tokens, hidden]."""
        if self.ranks.size == 1:
            out: Tensor = self.embed_tokens(tokens)
            return out
        own = (tokens >= self.first) & (tokens < self.last)
        vectors = self.embed_tokens(torch.where(own, tokens - self.first, 0)) * own.unsqueeze(-1)
        return scatter_sum(vectors, self.ranks)


class Block(nn.Module):
    """One transformer block: attention and SwiGLU, each behind a norm and added to its input."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(model.hidden_size, model.norm_eps)
        self.self_attn = Attention(model, ranks)
        self.post_attention_layernorm = RMSNorm(model.hidden_size, model.norm_eps)
        self.mlp = SwiGLU(model, ranks)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[sequences, tokens, hidden] -> same shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Head(nn.Module):
    """Final norm, output matrix and the summed cross entropy of the labels that count.

    `norm` makes the norm from the hidden size and its epsilon.
    """

    def __init__(self, model: ModelSpec, ranks: TensorGroup, norm: Callable[[int, float], nn.Module] = RMSNorm) -> None:
        super().__init__()
        self.ranks = ranks
        self.first, last = interval(model.vocab_size, ranks.size, ranks.index)
        self.norm = norm(model.hidden_size, model.norm_eps)
        self.lm_head = nn.Linear(model.hidden_size, last - self.first, bias=False)

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """[sequences, own tokens, hidden], labels [sequences, tokens] -> sum of losses, a scalar of at least fp32."""
        logits = self.lm_head(gather_tokens(self.norm(hidden), self.ranks))
        precise = logits if logits.dtype is torch.float64 else logits.float()
        return sharded_cross_entropy(precise.flatten(0, 1), labels.flatten(), self.first, IGNORED_LABEL, self.ranks)


def rotation_table(
    model: ModelSpec, num_tokens: int, dtype: torch.dtype, torch_device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [num_tokens, head_width] of rotary positions, computed in fp64."""
    half = torch.arange(0, model.head_width, 2, dtype=torch.float64) / model.head_width
    angles = torch.outer(torch.arange(num_tokens, dtype=torch.float64), model.rope_theta**-half)
    table = torch.cat((angles, angles), dim=-1)
    return table.cos().to(torch_device, dtype), table.sin().to(torch_device, dtype)


def _rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin
