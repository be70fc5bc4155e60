"""Charts of the report page as SVG text: lines over steps, pairs of bars, stacked memory. They need no script.

Colours are classes of the style sheet, so that light, dark and print differ only there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyreme.dashboard.figures import Pair, WorkerFigures
from polyreme.dashboard.markup import Markup, element, join
from polyreme.units import format_bytes

Point = tuple[float, float]
MAX_POINTS = 800
WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A line over steps, with an optional (low, middle, high) prediction drawn as a band. `unit` is shown on hover."""

    identifier: str
    label: str
    points: Sequence[Point]
    unit: str = ""
    scale: float = 1.0
    from_zero: bool = False
    band: tuple[float, float, float] | None = None


def decimate(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most about `limit` points: lowest and highest of every run of neighbours, so no spike is lost."""
    known = [point for point in points if math.isfinite(point[1])]
    if len(known) <= limit:
        return known
    size = math.ceil(2 * len(known) / limit)
    kept: list[Point] = []
    for start in range(0, len(known), size):
        run = known[start : start + size]
        ends = {min(run, key=lambda point: point[1]), max(run, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def line_chart(chart: LineChart) -> tuple[Markup, dict[str, Any]]:
    """The SVG, and what the page's script needs to show values under the pointer."""
    points = [(x, y * chart.scale) for x, y in decimate(chart.points)]
    band = tuple(value * chart.scale for value in chart.band) if chart.band else None
    xs = [x for x, _ in points] or [0.0]
    ys = [y for _, y in points] + list(band or ()) or [0.0]
    x_axis = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    low, high = (0.0 if chart.from_zero else min(ys)), max(ys)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    y_axis = _Axis(low if chart.from_zero else low - margin, high + margin, HEIGHT - BOTTOM, TOP)
    parts = [_grid(x_axis, y_axis)]
    if band:
        parts.append(_band(band, y_axis))
    if len(points) == 1:
        parts.append(element("circle", class_="dot", cx=_f(x_axis.at(xs[0])), cy=_f(y_axis.at(points[0][1])), r="3"))
    path = "".join(f"{'L' if i else 'M'}{_f(x_axis.at(x))} {_f(y_axis.at(y))}" for i, (x, y) in enumerate(points))
    parts.append(element("path", class_="line", d=path))
    parts.append(element("line", class_="cursor", x1="0", x2="0", y1=str(TOP), y2=str(HEIGHT - BOTTOM)))
    svg = element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=chart.label,
        class_="chart",
        id=chart.identifier,
    )
    data = {
        "id": chart.identifier,
        "unit": chart.unit,
        "points": [[x, float(f"{y:.6g}")] for x, y in points],
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "low": x_axis.low,
        "high": x_axis.high,
    }
    return svg, data


def pair_bars(pair: Pair, largest: float) -> Markup:
    """Predicted as an outline above measured as a filled bar, on a scale where `largest` is the full width."""
    width, parts = 120.0, []
    for value, kind, y in ((pair.predicted, "predicted", 1), (pair.measured, "measured", 10)):
        if value is not None and largest > 0:
            length = max(1.0, width * value / largest)
            parts.append(element("rect", class_=f"bar {kind}", x="1", y=str(y), width=_f(length), height="7", rx="1"))
    return element("svg", *parts, viewBox="0 0 122 18", class_="bars", aria_hidden="true")


def memory_bars(worker: WorkerFigures, scale_bytes: float, parts: Sequence[str]) -> Markup:
    """Two stacked bars, predicted above measured, and a line at the limit if it is on the scale."""
    width, drawn = 600.0, []
    rows = ((worker.predicted_memory_bytes, "predicted", 2), (worker.measured_memory_bytes, "measured", 18))
    for sizes, kind, y in rows:
        x = 0.0
        for part in parts:
            length = width * sizes.get(part, 0.0) / scale_bytes if scale_bytes > 0 else 0.0
            if length > 0:
                title = element("title", f"{kind} {part}: {format_bytes(sizes[part])}")
                shape = {"x": _f(x), "y": str(y), "width": _f(length), "height": "13"}
                drawn.append(element("rect", title, class_=f"part-{part_class(part)} {kind}", **shape))
                x += length
    limit = worker.memory_limit_bytes
    if limit is not None and 0 < limit <= scale_bytes:
        x = width * limit / scale_bytes
        drawn.append(element("line", class_="limit", x1=_f(x), x2=_f(x), y1="0", y2="33"))
    return element("svg", *drawn, viewBox="0 0 602 33", preserveAspectRatio="none", class_="memory", aria_hidden="true")


PARTS = ("weights", "gradients", "optimizer", "activations")


def part_class(part: str) -> str:
    """Name of the colour of a memory part; parts beyond the four known ones share one."""
    return part if part in PARTS else "other"


def memory_parts(workers: Sequence[WorkerFigures]) -> list[str]:
    """Every part that any worker names: the known ones in their order, then others by name."""
    named: set[str] = set()
    for worker in workers:
        for sizes in (worker.predicted_memory_bytes, worker.measured_memory_bytes):
            named |= {part for part, size in sizes.items() if size > 0}
    return [part for part in PARTS if part in named] + sorted(named - set(PARTS))


def memory_scale_bytes(workers: Sequence[WorkerFigures]) -> float:
    """Bytes at the full width: the largest limit, or the largest use where limits are far beyond it."""
    sizes: Sequence[Mapping[str, float]] = [
        sizes for worker in workers for sizes in (worker.predicted_memory_bytes, worker.measured_memory_bytes)
    ]
    used = max((sum(parts.values()) for parts in sizes), default=0.0)
    limits = [worker.memory_limit_bytes for worker in workers if worker.memory_limit_bytes]
    largest = max([used, *limits], default=0.0)
    return largest if largest <= 4 * used else 1.05 * used


class _Axis:
    """A linear scale from [low, high] to pixels, with round ticks."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high = (low, high) if high > low else (low - 0.5, low + 0.5)
        self.first, self.last = first, last

    def at(self, value: float) -> float:
        return self.first + (self.last - self.first) * (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[float]:
        rough = (self.high - self.low) / count
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _grid(x_axis: _Axis, y_axis: _Axis) -> Markup:
    parts = []
    for tick in y_axis.ticks(5):
        y = _f(y_axis.at(tick))
        parts.append(element("line", class_="grid", x1=str(LEFT), x2=str(WIDTH - RIGHT), y1=y, y2=y))
        parts.append(element("text", f"{tick:.6g}", class_="tick end", x=str(LEFT - 6), y=y, dy="0.32em"))
    for tick in x_axis.ticks(6):
        if tick == int(tick):
            x = _f(x_axis.at(tick))
            parts.append(element("text", f"{int(tick)}", class_="tick middle", x=x, y=str(HEIGHT - BOTTOM + 15)))
    parts.append(element("text", "step", class_="tick end", x=str(WIDTH - RIGHT), y=str(HEIGHT - 2)))
    return join(parts)


def _band(band: Sequence[float], y_axis: _Axis) -> Markup:
    low, middle, high = (y_axis.at(value) for value in band)
    across = {"x": str(LEFT), "width": str(WIDTH - RIGHT - LEFT)}
    rectangle = element("rect", class_="band", y=_f(high), height=_f(max(1.0, low - high)), **across)
    line = element("line", class_="band-middle", x1=str(LEFT), x2=str(WIDTH - RIGHT), y1=_f(middle), y2=_f(middle))
    return join([rectangle, line])


def _f(value: float) -> str:
    return f"{value:.1f}"
