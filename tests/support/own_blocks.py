"""Lists of blocks as a person would write them, unusual ones among them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = 16


class Twice(nn.Module):
    """One matrix used twice, a buffer, and an output cut in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.joined = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.norm = nn.LayerNorm(HIDDEN)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, HIDDEN))

    def forward(self, value: Tensor) -> Tensor:
        one, two = self.joined(self.norm(value) * self.scale).chunk(2, dim=-1)
        out: Tensor = value + self.matrix(torch.tanh(self.matrix(one))) * torch.sigmoid(two)
        return out


class LossHead(nn.Module):
    """Ends with the summed loss itself; its matrix is the embedding's."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.weight = embedding.weight

    def forward(self, value: Tensor, labels: Tensor) -> Tensor:
        logits = functional.linear(self.norm(value), self.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


def plain() -> list[nn.Module]:
    """Logits at the end."""
    return [nn.Embedding(256, HIDDEN), *(Twice() for _ in range(4)), nn.Linear(HIDDEN, 256)]


def tied() -> list[nn.Module]:
    """The loss at the end, with the embedding's matrix."""
    embedding = nn.Embedding(256, HIDDEN)
    return [embedding, *(Twice() for _ in range(4)), LossHead(embedding)]


def other() -> list[nn.Module]:
    """One block less, and another head."""
    return [nn.Embedding(256, HIDDEN), *(Twice() for _ in range(3)), nn.Linear(HIDDEN, 300)]


def broken() -> list[nn.Module]:
    """Raises."""
    raise RuntimeError("by hand")


def nothing() -> list[object]:
    """No modules."""
    return [nn.Linear(1, 1), 3, "x"]


def huggingface() -> list[nn.Module]:
    """A Llama of Hugging Face, block by block: each makes its own rotary table."""
    from transformers import LlamaConfig  # noqa: PLC0415
    from transformers.models.llama import modeling_llama as llama  # noqa: PLC0415

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_implementation="sdpa",
    )

    class Layer(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.layer = llama.LlamaDecoderLayer(config, number)
            self.rotary = llama.LlamaRotaryEmbedding(config)

        def forward(self, value: Tensor) -> Tensor:
            positions = torch.arange(value.shape[1], device=value.device).unsqueeze(0)
            out = self.layer(value, position_embeddings=self.rotary(value, positions), position_ids=positions)
            return out[0] if isinstance(out, tuple) else out

    head = nn.Sequential(llama.LlamaRMSNorm(HIDDEN), nn.Linear(HIDDEN, 256, bias=False))
    return [nn.Embedding(256, HIDDEN), *(Layer(number) for number in range(4)), head]
