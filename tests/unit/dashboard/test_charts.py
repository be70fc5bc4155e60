"""Charts: what is drawn, and that nothing is lost by drawing less."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyreme.dashboard.charts import (
    LineChart,
    decimate,
    line_chart,
    memory_bars,
    memory_parts,
    memory_scale_bytes,
    pair_bars,
)
from polyreme.dashboard.figures import Pair, WorkerFigures

FINITE = st.floats(-1e6, 1e6)


def worker(predicted: dict[str, float], measured: dict[str, float], limit: float | None) -> WorkerFigures:
    return WorkerFigures(
        rank=0,
        worker="node0/gpu0",
        device="gpu",
        stages="a.0",
        layers="0-1",
        bubble=Pair(None, None),
        predicted_memory_bytes=predicted,
        measured_memory_bytes=measured,
        memory_limit_bytes=limit,
    )


@given(st.lists(FINITE, max_size=300), st.integers(2, 50))
def test_decimation_keeps_extremes_and_order(values: list[float], limit: int) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    kept = decimate(points, limit)
    assert len(kept) <= max(limit, 2) + 1
    assert kept == sorted(kept)
    assert set(kept) <= set(points)
    if points:
        assert {min(y for _, y in kept), max(y for _, y in kept)} == {min(values), max(values)}


def test_points_that_are_no_numbers_are_left_out() -> None:
    assert decimate([(0.0, math.nan), (1.0, 2.0)]) == [(1.0, 2.0)]


@given(st.lists(FINITE | st.just(math.nan), max_size=30), st.booleans())
def test_line_chart_is_well_formed_and_inside_its_box(values: list[float], banded: bool) -> None:
    band = (1.0, 2.0, 3.0) if banded else None
    points = [(float(step), value) for step, value in enumerate(values)]
    svg, data = line_chart(LineChart(identifier="x", label="<x>", points=points, band=band))
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own text
    assert root.attrib["aria-label"] == "<x>"
    path = next(node for node in root.iter("path"))
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d", path.attrib["d"])]
    assert all(0 <= x <= 560 for x in numbers[::2])
    assert all(0 <= y <= 220 for y in numbers[1::2])
    assert len(data["points"]) == sum(math.isfinite(value) for value in values)


def test_bars_are_proportional() -> None:
    root = ElementTree.fromstring(pair_bars(Pair(1.0, 2.0), 4.0))  # noqa: S314
    widths = {node.attrib["class"]: float(node.attrib["width"]) for node in root.iter("rect")}
    assert widths == {"bar predicted": 30.0, "bar measured": 60.0}


def test_memory_parts_are_stacked_and_the_limit_is_marked() -> None:
    one = worker({"weights": 10.0, "activations": 30.0}, {"weights": 20.0}, 80.0)
    root = ElementTree.fromstring(memory_bars(one, 100.0, memory_parts([one])))  # noqa: S314
    bars = [(node.attrib["class"], float(node.attrib["x"]), float(node.attrib["width"])) for node in root.iter("rect")]
    assert bars == [
        ("part-weights predicted", 0.0, 60.0),
        ("part-activations predicted", 60.0, 180.0),
        ("part-weights measured", 0.0, 120.0),
    ]
    (limit,) = root.iter("line")
    assert float(limit.attrib["x1"]) == 480.0


@pytest.mark.parametrize(("limit", "scale"), [(None, 105.0), (300.0, 300.0), (401.0, 105.0), (50.0, 100.0)])
def test_memory_scale_leaves_out_limits_far_beyond_the_use(limit: float | None, scale: float) -> None:
    workers = [worker({"weights": 100.0}, {}, limit)]
    assert memory_scale_bytes(workers) == pytest.approx(scale if limit is not None else 100.0)


def test_unknown_parts_come_last_in_one_colour() -> None:
    one = worker({"workspace": 1.0, "activations": 1.0, "cache": 0.0}, {"weights": 1.0}, None)
    assert memory_parts([one]) == ["weights", "activations", "workspace"]
    assert 'class="part-other predicted"' in memory_bars(one, 2.0, memory_parts([one]))
