"""report.html: one run on one self-contained page. No request leaves it, and its tables need no script.

The page states a content security policy that allows its own style and script by hash and nothing else.
"""

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from polyreme import __version__
from polyreme.dashboard.charts import MAX_POINTS, LineChart, line_chart
from polyreme.dashboard.figures import RunFigures, figures
from polyreme.dashboard.markup import Markup, element, escape, join, json_block
from polyreme.dashboard.run_folder import RunView, load_run
from polyreme.dashboard.sections import (
    EMPTY,
    environment_section,
    failure_card,
    header,
    problem_section,
    section,
    stage_section,
    tiles,
    worker_section,
)
from polyreme.dashboard.timelines import MAX_LANES, timeline_data
from polyreme.specs.io import write_atomically

REPORT_NAME = "report.html"
_OPS = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "S": "send",
    "R": "receive",
    "REDUCE": "reduce",
    "NORM": "norm",
    "STEP": "update",
}


def write_report(run_dir: Path) -> Path:
    """Write report.html of a run folder and return its path. InputError if it is none, or cannot be written to."""
    view = load_run(run_dir)
    path = view.directory / REPORT_NAME
    write_atomically(path, render(view))
    return path


def render(view: RunView) -> str:
    """The page of a run, whole."""
    run = figures(view)
    curves, curve_data = _curves(view, run)
    timeline = timeline_data(view, run)
    body = [
        header(view, run),
        failure_card(view),
        tiles(run),
        _timeline_section(view, timeline),
        curves,
        stage_section(view, run),
        worker_section(run),
        environment_section(view),
        problem_section(view),
    ]
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("report.html")).substitute(
        title=escape(f"{view.run_id} · {view.status} · polyreme"),
        policy=escape(policy),
        style=style,
        script=script,
        body=join(body, "\n"),
        data=json_block("run-data", {"timeline": timeline, "curves": curve_data}),
        version=escape(__version__),
    )


def _asset(name: str) -> str:
    return (files("polyreme.dashboard") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _curves(view: RunView, run: RunFigures) -> tuple[Markup, list[dict[str, Any]]]:
    """Loss and step time over steps."""
    if not view.metrics:
        return EMPTY, []
    losses = [(float(line.step), line.loss) for line in view.metrics]
    times = [(float(line.step), line.step_time_s) for line in view.metrics if line.step_time_s > 0]
    middle, interval = run.step_time_s.predicted, run.step_time_interval_s
    band = (interval[0], middle, interval[1]) if interval and middle else None
    longest = max([time for _, time in times] + [middle or 0.0])
    unit, scale = ("s", 1.0) if longest >= 1 else ("ms", 1e3)
    charts = (
        LineChart(identifier="loss", label="Loss over steps", points=losses),
        LineChart(
            identifier="step-time",
            label=f"Step time over steps in {unit}, and the predicted interval",
            points=times,
            unit=unit,
            scale=scale,
            from_zero=True,
            band=band,
        ),
    )
    drawn, data = [], []
    for chart, title in zip(charts, ("Loss", f"Step time, {unit}"), strict=True):
        svg, numbers = line_chart(chart)
        data.append(numbers)
        note = EMPTY
        if chart.band:
            note = element("span", element("i", class_="band"), "predicted interval", class_="legend inline")
        thinned = len(chart.points) > MAX_POINTS
        text = f"{len(numbers['points'])} of {len(chart.points)} points: lowest and highest of each run of steps"
        under = element("p", text, class_="note") if thinned else EMPTY
        drawn.append(element("section", element("h2", title, note), svg, under))
    return element("div", *drawn, class_="two"), data


def _timeline_section(view: RunView, data: dict[str, Any]) -> Markup:
    """The place where the script draws both timelines, with what is said about them."""
    if not data["charts"]:
        return EMPTY
    complete, cut_off = view.measured.timeline, view.measured.cut_off
    notes = []
    if cut_off:
        notes.append(
            f"Step {cut_off.step} was not completed: it is drawn as far as it came, with what was still running framed."
        )
    if complete:
        which = "the one with the median time" if len(view.measured.step_times_s) > 1 else "the only complete one"
        notes.append(f"Measured: step {complete.step}, {which}. All on one time scale.")
    if not complete and not cut_off:
        notes.append("The run left no events: only the prediction is drawn.")
    if data["left_out"]:
        notes.append(f"The first {MAX_LANES} ranks are drawn, {data['left_out']} are left out.")
    if any(chart["merged"] for chart in data["charts"]):
        notes.append("Short neighbouring actions are drawn as one.")
    keys = join(element("span", element("i", class_=f"op-{op}"), name) for op, name in _OPS.items())
    legend = element("p", keys, element("span", "percent: bubble of the worker", class_="note"), class_="legend")
    hint = "drag to zoom in · ctrl + wheel zooms · arrow keys move · double click shows all"
    place = element(
        "div",
        element("noscript", element("p", "The timeline is drawn by a script; the table of workers below needs none.")),
        id="timeline",
        tabindex="0",
        role="group",
        aria_label="Timelines of one step, measured above predicted; the table of workers has the shares as numbers.",
    )
    return section("Pipeline timeline", legend, place, element("p", hint, class_="note hint"), note=" ".join(notes))
