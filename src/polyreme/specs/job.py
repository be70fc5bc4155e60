"""The job: which model on which cluster, how much data per step, what to minimise, and how to train."""

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


@spec
class AdamW:
    """AdamW with a constant rate. Loshchilov and Hutter, arXiv 1711.05101, algorithm 2."""

    learning_rate: PositiveFloat = 3e-4
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1


@spec
class TextData:
    """Byte-level text: files or folders, relative to the job file. Empty: the Python standard library's sources."""

    paths: tuple[Text, ...] = ()
    suffixes: Annotated[tuple[Text, ...], Len(1)] = (".py", ".txt", ".md", ".rst")


@spec
class JobSpec:
    """One training job. `model` and `cluster` are paths relative to the job file."""

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
    steps: PositiveInt = 100
    seed: NonNegativeInt = 0
