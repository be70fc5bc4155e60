"""What was measured: seconds per layer kind and device kind, with spread and provenance."""

from typing import Literal

from polyreme.specs.fields import LayerKind, NonNegativeFloat, NonNegativeInt, PositiveInt, Precision, Text, spec


@spec
class Spread:
    """A measured time: the median and the 10th and 90th percentile of `num_samples` timings, seconds."""

    median_s: NonNegativeFloat
    p10_s: NonNegativeFloat
    p90_s: NonNegativeFloat
    num_samples: PositiveInt

    def __post_init__(self) -> None:
        if not self.p10_s <= self.median_s <= self.p90_s:
            raise ValueError(f"percentiles out of order: p10 {self.p10_s}, median {self.median_s}, p90 {self.p90_s}")


@spec
class LayerTiming:
    """One layer kind on one device kind for one microbatch of `sequences` x `tokens_per_sequence`.

    `forward`, `backward` and `update` (one optimizer step of the layer) are seconds;
    `activation_bytes` is what forward keeps for backward.
    """

    device: Text
    layer: LayerKind
    precision: Precision
    sequences: PositiveInt
    tokens_per_sequence: PositiveInt
    forward: Spread
    backward: Spread
    update: Spread
    activation_bytes: NonNegativeInt


@spec
class ProfileSpec:
    """All timings of one model on the devices at hand."""

    schema: Literal["polyreme.profile/1"] = "polyreme.profile/1"
    created_by: Text
    digest: Text = "unsigned"
    model: Text
    layers: tuple[LayerTiming, ...]
    provenance: dict[Text, Text]
