"""What a simulation predicts of one step: time with interval, each worker's busy time and memory, and the timeline."""

from typing import Literal

from polyreme.specs.fields import NonNegativeFloat, NonNegativeInt, Text, spec
from polyreme.specs.plan import StageTime


@spec
class WorkerReport:
    """One worker. Times are seconds of one step; `memory_bytes` is by named part and sums to the peak."""

    rank: NonNegativeInt
    worker: Text
    device: Text
    layers: tuple[NonNegativeInt, NonNegativeInt]
    microbatch_time_s: StageTime
    busy_s: NonNegativeFloat
    update_s: NonNegativeFloat
    bubble_fraction: NonNegativeFloat
    memory_bytes: dict[Text, NonNegativeFloat]
    memory_limit_bytes: NonNegativeFloat


@spec
class Span:
    """One action on the timeline; seconds from the start of the step. `action` is its text form."""

    rank: NonNegativeInt
    action: Text
    start_s: NonNegativeFloat
    stop_s: NonNegativeFloat


@spec
class Report:
    """The prediction for one step of a plan: (low, middle, high) intervals; cost and energy where figures are known."""

    schema: Literal["polyreme.report/1"] = "polyreme.report/1"
    created_by: Text
    digest: Text = "unsigned"
    plan: Text
    step_time_s: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]
    tokens_per_s: NonNegativeFloat
    bubble_fraction: NonNegativeFloat
    cost_per_step_usd: NonNegativeFloat | None = None
    energy_per_step_j: NonNegativeFloat | None = None
    workers: tuple[WorkerReport, ...]
    timeline: tuple[Span, ...]
