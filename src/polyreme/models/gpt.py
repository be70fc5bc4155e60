"""GPT-2 layers: embedding with learned positions, and block (LayerNorm, attention, GELU), all with biases.

Each is built for one tensor rank and holds its part of every matrix; hidden states come and go cut by tokens. Matrices
are stored (in, out), as published weights are. The head is llama's with another norm.

Radford et al., GPT-2, 2019; GELU: Hendrycks and Gimpel, arXiv 1606.08415, in the form with tanh.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyreme.layout.owners import interval
from polyreme.models import llama
from polyreme.models.tensor_parallel import TensorGroup, gather_tokens, scatter_sum
from polyreme.specs.model import ModelSpec


class Conv1D(nn.Module):
    """value @ weight + bias with a weight [inputs, outputs]: a linear layer under the name that GPT-2 gives it."""

    def __init__(self, num_inputs: int, num_outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.empty(num_outputs)) if bias else None

    def forward(self, value: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return functional.linear(value, self.weight.t(), self.bias)


class Bias(nn.Module):
    """The bias of a matrix that is cut by input: each rank adds it to its own tokens of the ranks' sum."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(hidden_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return hidden + self.bias


class Attention(nn.Module):
    """Causal self-attention; one matrix makes queries, keys and values, one behind the other."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        first, last = interval(model.num_heads, ranks.size, ranks.index)
        self.num_heads, self.head_width = last - first, model.head_width
        width = self.num_heads * self.head_width
        self.c_attn = Conv1D(model.hidden_size, 3 * width)
        self.c_proj = Conv1D(width, model.hidden_size, bias=False)
        self.c_proj_bias = Bias(model.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[sequences, own tokens, hidden] -> same shape."""
        hidden = gather_tokens(hidden, self.ranks)
        sequences, tokens, _ = hidden.shape
        joined = self.c_attn(hidden).view(sequences, tokens, 3, self.num_heads, self.head_width)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        product = self.c_proj(mixed.transpose(1, 2).reshape(sequences, tokens, -1))
        out: Tensor = self.c_proj_bias(scatter_sum(product, self.ranks))
        return out


class MLP(nn.Module):
    """c_proj(gelu(c_fc(x)))."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        first, last = interval(model.ffn_hidden_size, ranks.size, ranks.index)
        self.c_fc = Conv1D(model.hidden_size, last - first)
        self.c_proj = Conv1D(last - first, model.hidden_size, bias=False)
        self.c_proj_bias = Bias(model.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[sequences, own tokens, hidden] -> same shape."""
        hidden = gather_tokens(hidden, self.ranks)
        product = self.c_proj(functional.gelu(self.c_fc(hidden), approximate="tanh"))
        out: Tensor = self.c_proj_bias(scatter_sum(product, self.ranks))
        return out


class Embedding(llama.Embedding):
    """Token ids to vectors plus those of their positions, which every rank holds whole and adds to its own tokens."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__(model, ranks)
        assert model.max_sequence_length is not None, "learned positions need a maximum"
        self.positions = nn.Embedding(model.max_sequence_length, model.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """[sequences, tokens] ids -> [sequences, own tokens, hidden]."""
        vectors = super().forward(tokens)
        num_own = vectors.shape[1]
        return vectors + self.positions.weight.narrow(0, self.ranks.index * num_own, num_own)


class Block(nn.Module):
    """One transformer block: attention and MLP, each behind a norm and added to its input."""

    def __init__(self, model: ModelSpec, ranks: TensorGroup) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(model.hidden_size, model.norm_eps)
        self.attn = Attention(model, ranks)
        self.ln_2 = nn.LayerNorm(model.hidden_size, model.norm_eps)
        self.mlp = MLP(model, ranks)

    def forward(self, hidden: Tensor) -> Tensor:
        """[sequences, own tokens, hidden] -> same shape."""
        hidden = hidden + self.attn(self.ln_1(hidden))
        out: Tensor = hidden + self.mlp(self.ln_2(hidden))
        return out
