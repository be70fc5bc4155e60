"""A model of one's own: a function that returns its blocks in order."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Causal attention and a perceptron, each behind a norm and added to its input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.joined, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.widen, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, value: Tensor) -> Tensor:
        """[sequences, tokens, hidden] -> same shape."""
        query, key, content = self.joined(self.norms[0](value)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, content, is_causal=True)
        value = value + self.out(mixed)
        return value + self.narrow(torch.relu(self.widen(self.norms[1](value))))


def blocks() -> list[nn.Module]:
    """The embedding, the blocks, the head."""
    return [nn.Embedding(256, 64), *[Block(64) for _ in range(6)], nn.Linear(64, 256)]
