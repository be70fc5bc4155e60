"""The job: which model on which cluster, how much data per step, what to minimise, and how to train."""

import math
from enum import StrEnum
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import Discriminator, Tag

from polyreme.specs.fields import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Objective,
    PositiveFloat,
    PositiveInt,
    Precision,
    ScheduleName,
    Text,
    spec,
)


@spec
class Batch:
    """One optimizer step: `sequences` of `tokens_per_sequence` each, over the whole cluster."""

    sequences: PositiveInt
    tokens_per_sequence: PositiveInt


@spec
class Limits:
    """What a plan must respect. `memory_fraction` is the share of each device's memory that may be planned for."""

    memory_fraction: Fraction = 0.95
    step_time_s: PositiveFloat | None = None
    cost_per_step_usd: PositiveFloat | None = None


class Decay(StrEnum):
    """How the learning rate goes on after the warm-up: it stays, or falls to its minimum at the last step."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@spec
class AdamW:
    """AdamW. Loshchilov and Hutter, arXiv 1711.05101, algorithm 2; cosine: arXiv 1608.03983, equation 5.

    `clip_norm` is the norm of all gradients together above which they are scaled down to it; null: never.
    """

    learning_rate: PositiveFloat = 3e-4
    warmup_steps: NonNegativeInt = 0
    decay: Decay = Decay.CONSTANT
    min_learning_rate: NonNegativeFloat = 0.0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    clip_norm: PositiveFloat | None = 1.0

    def __post_init__(self) -> None:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate {self.min_learning_rate} is above learning_rate {self.learning_rate}")

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Rate of a step, counted from 0: linear to the peak over the warm-up, then by `decay`."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, num_steps - 1 - self.warmup_steps))
        left = {Decay.CONSTANT: 1.0, Decay.LINEAR: 1 - progress, Decay.COSINE: (1 + math.cos(math.pi * progress)) / 2}
        return self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * left[self.decay]


@spec
class TextData:
    """Byte-level text: files or folders, relative to the job file. Empty: the Python standard library's sources."""

    kind: Literal["text"] = "text"
    paths: tuple[Text, ...] = ()
    suffixes: Annotated[tuple[Text, ...], Len(1)] = (".py", ".txt", ".md", ".rst")


class TokenDtype(StrEnum):
    """Number format of a raw file of token ids; little-endian."""

    UINT16 = "uint16"
    UINT32 = "uint32"


@spec
class TokenData:
    """Token ids in `.npy` files or raw files of `dtype`; files, or folders of `.bin` and `.npy` files.

    With `eos_token` all files are one stream, separated by it; without, no sequence runs over the end of a file.
    """

    kind: Literal["tokens"] = "tokens"
    paths: Annotated[tuple[Text, ...], Len(1)]
    dtype: TokenDtype = TokenDtype.UINT16
    eos_token: NonNegativeInt | None = None


@spec
class HuggingFaceData:
    """Rows of a dataset that the `datasets` library reads, one document each.

    `dataset` is a folder or a name on the hub, `files` are local parquet, JSON or text files; one of them is given.
    `tokenizer` is `bytes`, a tokenizer.json, a folder that holds one, or a name on the hub; none if `column` holds ids.
    """

    kind: Literal["huggingface"] = "huggingface"
    dataset: Text | None = None
    config: Text | None = None
    files: tuple[Text, ...] = ()
    split: Text = "train"
    column: Text = "text"
    tokenizer: Text | None = None

    def __post_init__(self) -> None:
        if (self.dataset is None) == (not self.files):
            raise ValueError("give either dataset or files")
        if self.config is not None and self.dataset is None:
            raise ValueError("config belongs to dataset, not to files")


def _kind(data: Any) -> str:
    """Name of the alternative that `data`, from a file or made in code, is meant to be."""
    return str(data.get("kind", "text")) if isinstance(data, dict) else str(getattr(data, "kind", "text"))


Data = Annotated[
    Annotated[TextData, Tag("text")]
    | Annotated[TokenData, Tag("tokens")]
    | Annotated[HuggingFaceData, Tag("huggingface")],
    Discriminator(_kind),
]


@spec
class Evaluation:
    """Loss on `sequences` fixed sequences every `every_steps` steps, by default on a part that training never draws."""

    every_steps: PositiveInt
    sequences: PositiveInt
    data: Data | None = None


@spec
class JobSpec:
    """One training job. `model`, `cluster` and `initial_weights` are paths relative to the job file.

    `initial_weights`: a folder of safetensors under Hugging Face names, or one file; None: drawn by `seed`.
    """

    schema: Literal["polyreme.job/1"] = "polyreme.job/1"
    name: Text
    model: Text
    cluster: Text
    batch: Batch
    precision: Precision = Precision.FP32
    objective: Objective = Objective.TIME
    schedule: ScheduleName | None = None
    limits: Limits = Limits()
    optimizer: AdamW = AdamW()
    data: Data = TextData()
    evaluation: Evaluation | None = None
    initial_weights: Text | None = None
    steps: PositiveInt = 100
    seed: NonNegativeInt = 0
