"""Seconds of one layer on one kind of device: measured where a profile has it, else a roofline.

Roofline (Williams et al., CACM 2009): the larger of FLOPs over sustained matmul rate and bytes over sustained
bandwidth, plus a fixed overhead per layer. The constants are first values, replaced by any profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polyreme.costs.flops import layer_work
from polyreme.errors import InputError
from polyreme.layout.layers import layer_kind, parameter_count
from polyreme.specs.device import DeviceKind
from polyreme.specs.fields import PRECISION_BYTES, Precision
from polyreme.specs.model import ModelSpec
from polyreme.specs.profile import LayerTiming, ProfileSpec, Spread

SHARE_OF_MEASURED_MATMUL = 0.7
"""Share of the best measured matmul rate that a whole layer sustains; published steps reach 0.6 to 0.75."""
SHARE_OF_PEAK = 0.45
"""Share of the printed peak where no matmul was measured; the middle of published 0.32 to 0.51 by chip."""
SHARE_OF_BANDWIDTH = 0.8
LAYER_OVERHEAD_S = 50e-6
UPDATE_BYTES_PER_PARAMETER = 28.0
"""AdamW reads gradient, master weight and two moments and writes three of them: 7 x 4 bytes."""
UNCALIBRATED = (0.7, 1.3)
"""Interval of a prediction without a profile: the spread of published steps around such a roofline."""
PROFILE_MARGIN = 0.1
"""Least half-width of the interval with a profile: what a run adds to layers measured alone."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one layer for one microbatch, and of its update once a step; `low` and `high` scale them."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    update_s: float
    low: float
    high: float

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.input_gradient_s + self.weight_gradient_s


def layer_time(
    model: ModelSpec,
    layer: int,
    kind: DeviceKind,
    precision: Precision,
    sequences: int,
    tokens_per_sequence: int,
    profile: ProfileSpec | None = None,
) -> LayerTime:
    """Time of `layer` on `kind`. InputError if there is neither a timing nor a peak to compute it from."""
    work = layer_work(model, layer, sequences, tokens_per_sequence)
    backward_flops = work.input_gradient_flops + work.weight_gradient_flops
    input_share = work.input_gradient_flops / backward_flops if backward_flops else 0.0
    timings = _timings(profile, kind, model, layer, precision, tokens_per_sequence)
    if timings:
        forward, backward = (_at(timings, sequences, which) for which in ("forward", "backward"))
        spread = [one for timing in timings for one in (timing.forward, timing.backward) if one.median_s > 0]
        low = min((one.p10_s / one.median_s for one in spread), default=1.0)
        high = max((one.p90_s / one.median_s for one in spread), default=1.0)
        return LayerTime(
            forward,
            backward * input_share,
            backward * (1 - input_share),
            timings[0].update.median_s,
            min(low, 1 - PROFILE_MARGIN),
            max(high, 1 + PROFILE_MARGIN),
        )
    flops_per_s, bytes_per_s = _sustained(kind, precision)
    moved_s = work.forward_elements * PRECISION_BYTES[precision] / bytes_per_s
    parameters_held = parameter_count(model, layer, layer + 1)
    return LayerTime(
        max(work.forward_flops / flops_per_s, moved_s) + LAYER_OVERHEAD_S,
        max(work.input_gradient_flops / flops_per_s, moved_s) + LAYER_OVERHEAD_S,
        max(work.weight_gradient_flops / flops_per_s, moved_s),
        parameters_held * UPDATE_BYTES_PER_PARAMETER / bytes_per_s,
        *UNCALIBRATED,
    )


def _sustained(kind: DeviceKind, precision: Precision) -> tuple[float, float]:
    """(FLOP/s, bytes/s) that a kind keeps up."""
    measured = (kind.matmul_flops_per_s or {}).get(precision)
    peak = (kind.peak_flops_per_s or {}).get(precision)
    bandwidth = kind.memory_bandwidth_bytes_per_s
    if (measured is None and peak is None) or bandwidth is None:
        raise InputError.single(
            f"device kind {kind.name}",
            f"has no timing in a profile and no {precision} peak or memory bandwidth to estimate from",
            fix="run `polyreme profile` and give its file, or add the figures to device_kinds",
        )
    rate = measured * SHARE_OF_MEASURED_MATMUL if measured is not None else (peak or 0.0) * SHARE_OF_PEAK
    return rate, bandwidth * SHARE_OF_BANDWIDTH


def _timings(
    profile: ProfileSpec | None,
    kind: DeviceKind,
    model: ModelSpec,
    layer: int,
    precision: Precision,
    tokens_per_sequence: int,
) -> list[LayerTiming]:
    """Timings of the layer's kind on the device at this sequence length, by microbatch size."""
    if profile is None:
        return []
    wanted = (kind.name, layer_kind(model, layer), precision, tokens_per_sequence)
    found = [t for t in profile.layers if (t.device, t.layer, t.precision, t.tokens_per_sequence) == wanted]
    return sorted(found, key=lambda timing: timing.sequences)


def _at(timings: Sequence[LayerTiming], sequences: int, which: str) -> float:
    """Median seconds at a microbatch size: between two measured sizes on their line, beyond the last in proportion."""
    spreads: list[tuple[int, Spread]] = [(timing.sequences, getattr(timing, which)) for timing in timings]
    below = [one for one in spreads if one[0] <= sequences]
    above = [one for one in spreads if one[0] >= sequences]
    if below and above:
        (size, low), (next_size, high) = below[-1], above[0]
        share = (sequences - size) / (next_size - size) if next_size > size else 0.0
        return low.median_s + share * (high.median_s - low.median_s)
    size, nearest = below[-1] if below else above[0]
    return nearest.median_s * sequences / size
