"""The job: which model on which cluster, how much data per step, what to minimise, and how to train."""

import math
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Len

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

    paths: tuple[Text, ...] = ()
    suffixes: Annotated[tuple[Text, ...], Len(1)] = (".py", ".txt", ".md", ".rst")


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
    data: TextData = TextData()
    initial_weights: Text | None = None
    steps: PositiveInt = 100
    seed: NonNegativeInt = 0
