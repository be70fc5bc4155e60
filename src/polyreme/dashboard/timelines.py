"""The timelines of a run, measured and predicted, as data for the page and as groups of a trace file."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from polyreme.dashboard.figures import RunFigures, WorkerFigures
from polyreme.dashboard.run_folder import RunView
from polyreme.layout.instances import instances
from polyreme.schedules.action import Action, parse_action, recorded_action
from polyreme.specs.events import OP_NUMBERS, Event
from polyreme.telemetry.measured import MeasuredStep
from polyreme.telemetry.trace import TraceGroup

TICK_S = 1e-7
"""Unit of the times in the page's data."""
MAX_SPANS = 40_000
"""Above this many in one timeline, short neighbours are drawn as one."""
MAX_LANES = 64


class LaneSpan(NamedTuple):
    """One action on the timeline of a rank, seconds from the start of the step; or `num_actions` drawn as one."""

    rank: int
    action: Action
    start_s: float
    stop_s: float
    kib: int = 0
    ended: bool = True
    num_actions: int = 1


def pipeline_names(view: RunView) -> tuple[str, ...]:
    """Names of the running pipelines, by the number that events give them."""
    return tuple(instance.name for instance in instances(view.plan)) if view.plan else ()


def measured_spans(step: MeasuredStep | None, names: Sequence[str]) -> list[LaneSpan]:
    """Spans of a measured step; empty without one."""
    found = []
    for span in step.spans if step else ():
        event = Event(0, 0, 0, span.microbatch, span.kib, span.stage, span.op, span.pipeline)
        found.append(
            LaneSpan(span.rank, recorded_action(event, names), span.start_s, span.stop_s, span.kib, ended=span.ended)
        )
    return found


def predicted_spans(view: RunView) -> list[LaneSpan]:
    """Spans of the predicted step; what names no action is left out."""
    found = []
    for span in view.prediction.timeline if view.prediction else ():
        try:
            action = parse_action(span.action)
        except ValueError:
            continue
        found.append(LaneSpan(span.rank, action, span.start_s, max(span.start_s, span.stop_s)))
    return sorted(found, key=lambda span: (span.rank, span.start_s))


def lane_name(worker: WorkerFigures) -> str:
    """`rank 2 · node0/gpu2 · A100 · layers 3-5`."""
    parts = [f"rank {worker.rank}", worker.worker, worker.device, f"layers {worker.layers}"]
    return " · ".join(part for part in parts if part)


class _Chart(NamedTuple):
    """One timeline: `kind` is cut off, measured or predicted."""

    kind: str
    title: str
    spans: list[LaneSpan]


def _charts(view: RunView) -> list[_Chart]:
    """Those that there are, in the order shown: what was cut off, measured, predicted."""
    names, measured = pipeline_names(view), view.measured
    charts = []
    if measured.cut_off:
        title = f"cut off, step {measured.cut_off.step}"
        charts.append(_Chart("cut off", title, measured_spans(measured.cut_off, names)))
    if measured.timeline:
        title = f"measured, step {measured.timeline.step}"
        charts.append(_Chart("measured", title, measured_spans(measured.timeline, names)))
    charts.append(_Chart("predicted", "predicted", predicted_spans(view)))
    return [chart for chart in charts if chart.spans]


def trace_groups(view: RunView, run: RunFigures) -> Iterator[TraceGroup]:
    """The timelines of a run as groups of a trace, measured above predicted."""
    lanes = {worker.rank: lane_name(worker) for worker in run.workers}
    for chart in _charts(view):
        named = {span.rank: lanes.get(span.rank, f"rank {span.rank}") for span in chart.spans}
        rows = ((s.rank, str(s.action), str(s.action.op), s.start_s, s.stop_s) for s in chart.spans)
        yield TraceGroup(chart.title, named, rows)


def timeline_data(view: RunView, run: RunFigures) -> dict[str, Any]:
    """What the page's script draws: lanes, and per chart and lane a flat list of numbers, seven per span.

    Seven numbers: op (negative: never ended), pipeline, stage, microbatch, start and duration in ticks, actions.
    """
    known = {worker.rank: worker for worker in run.workers}
    ranks = sorted(known.keys() | view.events.records.keys())
    shown = ranks[:MAX_LANES]
    names = list(pipeline_names(view))
    charts = []
    for chart in _charts(view):
        merged = thin(chart.spans)
        bubble = {w.rank: w.bubble.predicted if chart.kind == "predicted" else w.bubble.measured for w in run.workers}
        charts.append(
            {
                "kind": chart.kind,
                "title": chart.title,
                "stop": round(max(span.stop_s for span in chart.spans) / TICK_S),
                "lanes": [_flat([span for span in merged if span.rank == rank], names) for rank in shown],
                "bubble": [None if chart.kind == "cut off" else bubble.get(rank) for rank in shown],
                "merged": len(merged) < len(chart.spans),
            }
        )
    return {
        "tick_s": TICK_S,
        "pipelines": names,
        "lanes": [_lane(rank, known.get(rank)) for rank in shown],
        "charts": charts,
        "left_out": len(ranks) - len(shown),
    }


def _lane(rank: int, worker: WorkerFigures | None) -> dict[str, Any]:
    if worker is None:
        return {"rank": rank, "title": f"{rank}", "detail": ""}
    detail = f"{worker.device} · layers {worker.layers}".removeprefix(" · ")
    return {"rank": rank, "title": f"{rank}  {worker.worker}", "detail": detail}


def thin(spans: list[LaneSpan], limit: int = MAX_SPANS) -> list[LaneSpan]:
    """At most `limit` spans, or one per rank: short neighbours become one that looks like the longest of them.

    `spans` are sorted by rank and start. What is drawn as one is as short as the limit allows.
    """
    resolution_s = max((span.stop_s for span in spans), default=0.0) / 4000
    num_ranks = len({span.rank for span in spans})
    while len(spans) > max(limit, num_ranks) and resolution_s > 0:
        merged = [spans[0]]
        for span in spans[1:]:
            last = merged[-1]
            if last.rank == span.rank and last.ended and span.stop_s - last.start_s <= resolution_s:
                merged[-1] = _one_of(last, span)
            else:
                merged.append(span)
        spans, resolution_s = merged, 2 * resolution_s
    return spans


def _one_of(left: LaneSpan, right: LaneSpan) -> LaneSpan:
    longer = left if left.stop_s - left.start_s >= right.stop_s - right.start_s else right
    count = left.num_actions + right.num_actions
    return right._replace(action=longer.action, start_s=left.start_s, num_actions=count)


def _flat(spans: list[LaneSpan], names: list[str]) -> list[int]:
    flat: list[int] = []
    for span in spans:
        action = span.action
        number = OP_NUMBERS[action.op.value] * (1 if span.ended else -1)
        pipeline = names.index(action.pipeline) if action.pipeline in names else 0
        start, stop = round(span.start_s / TICK_S), round(span.stop_s / TICK_S)
        flat += [number, pipeline, action.stage, action.microbatch, start, stop - start, span.num_actions]
    return flat
