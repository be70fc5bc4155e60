"""The sections of the report page, each a pure function from figures to Markup; an empty one means nothing to show."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from urllib.parse import quote

from polyreme.dashboard.charts import (
    memory_bars,
    memory_parts,
    memory_scale_bytes,
    pair_bars,
    part_class,
)
from polyreme.dashboard.figures import Pair, RunFigures, layer_range
from polyreme.dashboard.markup import Content, Markup, element, join
from polyreme.dashboard.run_folder import Failure, RunView
from polyreme.dashboard.timelines import pipeline_names
from polyreme.schedules.action import recorded_action
from polyreme.units import format_bytes, format_count, format_percent, format_time_s

EMPTY = Markup("")
UNKNOWN = "-"
TAIL_LINES = 25
_ESCAPE_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_WHAT_STATUS_MEANS = {
    "completed": "all steps done",
    "failed": "a worker was lost or raised",
    "interrupted": "stopped before its last step",
    "unfinished": "no result: it still runs, or its launcher was killed",
}


def section(title: str, *children: Content, note: Content = "") -> Markup:
    """A card with a heading and an optional line under it."""
    under = element("p", note, class_="note") if note else EMPTY
    return element("section", element("h2", title), under, *children)


def header(view: RunView, run: RunFigures) -> Markup:
    """Name of the run, its state, and where it comes from."""
    badge = element("span", view.status, class_=f"badge {view.status}", title=_WHAT_STATUS_MEANS[view.status])
    facts: list[Content] = []
    if view.model:
        count = f"{format_count(run.num_parameters)} parameters" if run.num_parameters else ""
        facts.append(_fact("model", f"{view.model.name}, {count}".removesuffix(", ")))
    if view.plan:
        facts.append(_fact("plan", view.plan.digest[:12], title=view.plan.digest))
    if started := _when(view.environment.get("started_unix_s")):
        facts.append(_fact("started", started))
    steps = f"{run.num_steps} of {run.planned_steps}" if run.planned_steps else f"{run.num_steps}"
    facts.append(_fact("steps", steps))
    versions = ("seed", "polyreme", "torch", "python")
    facts += [_fact(key, view.environment[key]) for key in versions if view.environment.get(key)]
    meaning = element("span", _WHAT_STATUS_MEANS[view.status], class_="meaning")
    return element("header", element("h1", view.run_id, " ", badge, meaning), element("dl", *facts))


def failure_card(view: RunView) -> Markup:
    """The root cause and what every worker was doing; nothing for a run that did not fail."""
    if view.failure is None:
        return EMPTY
    failure = view.failure
    named = [
        (failure.worker, "worker"),
        (f"rank {failure.rank}" if failure.rank else "", ""),
        (failure.stage, "stage"),
        (failure.device, "device"),
        (failure.action, "action"),
        (f"step {failure.step}" if failure.step else "", ""),
    ]
    where = join(
        (element("span", f"{label} " if label else "", element("b", value)) for value, label in named if value)
    )
    exit_code = f" · exit code {view.exit_code}" if view.exit_code is not None else ""
    return element(
        "section",
        element("h2", "Root cause", element("span", exit_code, class_="note")),
        element("p", where, class_="where"),
        element("pre", _printable(failure.exception) or "no exception was reported", class_="exception"),
        _log_tail(failure),
        _last_actions(view),
        class_="failure",
    )


def _log_tail(failure: Failure) -> Markup:
    if not failure.log:
        return EMPTY
    lines = _printable(failure.log_tail).splitlines()[-TAIL_LINES:]
    if not lines:
        return element("p", element("a", failure.log, href=quote(failure.log)), " is empty", class_="note")
    link = element("a", failure.log, href=quote(failure.log))
    summary = element("summary", "Last lines of ", link)
    return element("details", summary, element("pre", "\n".join(lines)), open="open")


def _last_actions(view: RunView) -> Markup:
    """What each rank recorded last: a rank that waits in a receive is a victim, the failed one is not."""
    last = view.events.last_events()
    if not last:
        return EMPTY
    end_ns = max(event.start_ns + max(event.duration_ns, 0) for event in last.values())
    names = pipeline_names(view)
    failed = view.failure.rank if view.failure else ""
    rows: list[Row] = []
    for rank, event in last.items():
        running = event.duration_ns < 0
        running_s = (end_ns - event.start_ns) * 1e-9
        state = f"was running for {format_time_s(running_s)}" if running_s > 0 else "had just begun"
        worker = view.plan.workers[rank] if view.plan and rank < len(view.plan.workers) else UNKNOWN
        cells: list[Content] = [
            rank,
            worker,
            event.step,
            str(recorded_action(event, names)),
            state if running else "ended",
        ]
        rows.append((cells, "culprit" if str(rank) == failed else None))
    table = _table(["rank", "worker", "step", "last action", "state"], rows, numeric=(2,))
    return element("details", element("summary", "What each worker did last"), table, open="open")


def tiles(run: RunFigures) -> Markup:
    """The few figures to look at first."""
    interval = run.step_time_interval_s
    expected = f"predicted {_time(run.step_time_s.predicted)}"
    if interval:
        expected += f" ({format_time_s(interval[0])} to {format_time_s(interval[1])})"
    loss_note = f"from {run.first_loss:.3f}" if run.first_loss is not None and run.num_steps > 1 else ""
    if run.first_bad_loss_step is not None:
        loss_note = f"not finite from step {run.first_bad_loss_step} on"
    return element(
        "div",
        _tile("Final loss", UNKNOWN if run.final_loss is None else f"{run.final_loss:.3f}", loss_note),
        _tile("Step time", _time(run.step_time_s.measured), expected, _error(run.step_time_s)),
        _tile(
            "Tokens per second",
            _count(run.tokens_per_s.measured),
            f"predicted {_count(run.tokens_per_s.predicted)}",
            _error(run.tokens_per_s),
        ),
        _tile(
            "Bubble",
            _share(run.bubble.measured),
            f"predicted {_share(run.bubble.predicted)}",
        ),
        class_="tiles",
    )


def stage_section(view: RunView, run: RunFigures) -> Markup:
    """Predicted and measured time of one microbatch per stage."""
    if not run.stages:
        return EMPTY
    values = [
        v
        for stage in run.stages
        for pair in (stage.forward_s, stage.backward_s)
        for v in (pair.predicted, pair.measured)
    ]
    largest = max((value for value in values if value), default=0.0)
    rows = []
    for stage in run.stages:
        cells: list[Content] = [
            f"{stage.pipeline}.{stage.stage}",
            ", ".join(map(str, stage.ranks)),
            stage.device or UNKNOWN,
            layer_range(stage.layers),
        ]
        for pair in (stage.forward_s, stage.backward_s):
            cells += [_time(pair.predicted), _time(pair.measured), _error(pair), pair_bars(pair, largest)]
        rows.append((cells, None))
    heads: list[Content] = ["stage", "ranks", "device", "layers"]
    keys = [join([element("span", class_=f"key {kind}"), kind]) for kind in ("predicted", "measured")]
    for name in ("forward", "backward"):
        heads += [f"{name} predicted", "measured", "error", element("span", join(keys, " "), class_="keys")]
    several = len(view.measured.step_times_s) > 1
    steps = "all steps after the first" if several else "the first step, which pays for allocation"
    return section(
        "Time per stage",
        _table(heads, rows, numeric=(3, 4, 5, 6, 8, 9, 10)),
        note=f"One microbatch, median over {steps}. Layer 0 is the embedding, the last one the head.",
    )


def worker_section(run: RunFigures) -> Markup:
    """Bubble and memory of each worker."""
    if not run.workers:
        return EMPTY
    scale = memory_scale_bytes(run.workers)
    parts = memory_parts(run.workers)
    rows = []
    for worker in run.workers:
        memory, limit = worker.memory_bytes, worker.memory_limit_bytes
        peak = memory.measured if memory.measured is not None else memory.predicted
        used = format_percent(peak / limit) if peak is not None and limit else UNKNOWN
        cells: list[Content] = [
            worker.rank,
            worker.worker,
            worker.device or UNKNOWN,
            worker.layers,
            _share(worker.bubble.predicted),
            _share(worker.bubble.measured),
            _bytes(memory.predicted),
            _bytes(memory.measured),
            _bytes(limit),
            used,
            memory_bars(worker, scale, parts),
        ]
        rows.append((cells, "over" if peak and limit and peak > limit else None))
    heads = ["rank", "worker", "device", "layers", "bubble predicted", "measured"]
    heads += ["memory predicted", "measured", "limit", "used", f"0 to {format_bytes(scale)}"]
    keys = join(element("span", element("i", class_=f"part-{part_class(part)}"), part) for part in parts)
    legend = element("p", keys, element("span", element("i", class_="limit"), "limit"), class_="legend")
    note = "Bubble: share of a step without compute. Memory: peak by part, the prediction (pale) above the measurement."
    if all(not worker.measured_memory_bytes for worker in run.workers):
        note = "Bubble: share of a step without compute. Memory: predicted peak by part; the run left no measurement."
    return section("Workers", legend, _table(heads, rows, numeric=(0, 3, 4, 5, 6, 7, 8, 9)), note=note)


def environment_section(view: RunView) -> Markup:
    """Everything the run wrote down about where it ran, and its logs."""
    rows: list[tuple[list[Content], str | None]] = []
    for key, value in view.environment.items():
        shown = _when(value) or value if key == "started_unix_s" else value
        rows.append(([key, element("code", shown)], None))
    if view.plan:
        rows.append((["plan digest", element("code", view.plan.digest)], None))
    if view.logs:
        links = join((element("a", log, href=quote(log)) for log in view.logs), " ")
        rows.append((["logs", element("span", links, class_="links")], None))
    return section("Environment", _table(["", ""], rows, numeric=(), head=False)) if rows else EMPTY


def problem_section(view: RunView) -> Markup:
    """What of the run folder could not be read."""
    if not view.problems:
        return EMPTY
    items = [element("li", problem) for problem in view.problems]
    return section("Not shown", element("ul", *items), note="These parts of the run folder are missing or damaged.")


Row = tuple[Sequence[Content], str | None]


def _table(heads: Sequence[Content], rows: Iterable[Row], *, numeric: Sequence[int], head: bool = True) -> Markup:
    """A table in a box that scrolls by itself where it is too wide."""

    def cells(name: str, values: Sequence[Content]) -> list[Markup]:
        return [element(name, value, class_="n" if i in numeric else None) for i, value in enumerate(values)]

    top = element("thead", element("tr", *cells("th", heads))) if head else EMPTY
    body = element("tbody", *(element("tr", *cells("td", values), class_=name) for values, name in rows))
    return element("div", element("table", top, body), class_="wide", tabindex="0")


def _tile(title: str, value: str, note: str, error: Content = EMPTY) -> Markup:
    return element(
        "div",
        element("h3", title),
        element("p", value, " ", error, class_="value"),
        element("p", note, class_="note"),
        class_="tile",
    )


def _fact(name: str, value: Content, title: str | None = None) -> Markup:
    return element("div", element("dt", name), element("dd", value, title=title))


def _known(form: Callable[[float], str], value: float | None) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else form(value)


def _time(value: float | None) -> str:
    return _known(format_time_s, value)


def _bytes(value: float | None) -> str:
    return _known(format_bytes, value)


def _count(value: float | None) -> str:
    return _known(format_count, value)


def _share(value: float | None) -> str:
    return _known(format_percent, value)


def _error(pair: Pair) -> Markup:
    """`+4.2 %`, marked where it is beyond 15 % either way."""
    if pair.error is None:
        return element("span", UNKNOWN)
    far = abs(pair.error) > 0.15
    return element("span", f"{100 * pair.error:+.1f} %", class_="error far" if far else "error")


def _when(value: str | None) -> str | None:
    """UTC date and time of a text that holds seconds since 1970; None if it does not."""
    try:
        return datetime.fromtimestamp(float(value or ""), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return None


def _printable(text: str) -> str:
    """Without terminal colours and control characters."""
    return _ESCAPE_CODE.sub("", text.replace("\r\n", "\n")).strip("\n")
