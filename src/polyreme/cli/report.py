"""`polyreme report`: what a run did, on the terminal, as a page, as events, as a trace or as JSON."""

import argparse
import dataclasses
import json
import math
import sys
import webbrowser
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyreme.dashboard.figures import Pair, RunFigures, figures
from polyreme.dashboard.report_page import write_report
from polyreme.dashboard.run_folder import RunView, is_run_folder, load_run
from polyreme.dashboard.timelines import pipeline_names, trace_groups
from polyreme.errors import InputError
from polyreme.schedules.action import recorded_action
from polyreme.telemetry.trace import write_trace_groups
from polyreme.units import format_bytes, format_count, format_percent, format_time_s

HELP = "Show a run: a summary here and a page in RUN/report.html; or its events, its trace, or all figures as JSON."
EXAMPLE = "polyreme report runs/2026-01-31-1 --open"
RUNS = Path("runs")
UNKNOWN = "-"
_LINE_COLUMNS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `polyreme report`."""
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="run folder; default: the latest in ./runs")
    parser.add_argument("--events", action="store_true", help="print the recorded events, one a line, and nothing else")
    parser.add_argument("--rank", type=int, metavar="R", help="with --events: only those of this rank")
    parser.add_argument(
        "--trace", type=Path, metavar="F", help="write the measured and the predicted step for Perfetto"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON and write no page")


def run(args: argparse.Namespace) -> int:
    """Run the command. InputError if there is no such run, or a file cannot be written."""
    if args.rank is not None and not args.events:
        raise InputError.single("--rank", "chooses among events", fix="add --events")
    view = load_run(args.run if args.run is not None else latest_run(RUNS))
    if args.events:
        print_events(view, args.rank)
        return 0
    run_figures = figures(view)
    if args.trace is not None:
        write_trace_groups(args.trace, trace_groups(view, run_figures))
    if args.json:
        json.dump(summary_data(view, run_figures), sys.stdout, indent=1, allow_nan=False)
        print(flush=True)
        return 0
    page = write_report(view.directory)
    # A row that is too long for the terminal is better wrapped by it than squeezed into cells of a few letters.
    print_summary(view, run_figures, Console(highlight=False, width=_LINE_COLUMNS))
    if args.trace is not None:
        print(f"trace   {args.trace}")
    print(f"report  {page}", flush=True)
    if args.open and not webbrowser.open(page.as_uri()):
        print("polyreme: no browser could be started; open the page by hand", file=sys.stderr)
    return 0


def latest_run(runs: Path) -> Path:
    """The run folder in `runs` that was started last. InputError if there is none."""
    try:
        found = [path for path in runs.iterdir() if path.is_dir() and is_run_folder(path)]
    except OSError:
        found = []
    if not found:
        raise InputError.single(
            str(runs), "holds no run", fix="give the run folder: polyreme report RUN; or start one: polyreme demo"
        )
    return max(found, key=lambda path: (_started_unix_s(path), path.name))


def _started_unix_s(path: Path) -> float:
    """When a run started, as it says itself, else when its folder was changed last."""
    try:
        started = json.loads((path / "environment.json").read_text(encoding="utf-8"))["started_unix_s"]
        if isinstance(started, int | float) and math.isfinite(started):
            return float(started)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return path.stat().st_mtime


def print_events(view: RunView, rank: int | None) -> None:
    """One line an event: rank, step, action, start since the first event of the run, duration, bytes moved."""
    known = sorted(view.events.records)
    if rank is not None and rank not in known:
        raise InputError.single("--rank", f"{rank} has no events", fix=f"ranks with events: {_ranges(known)}")
    names = pipeline_names(view)
    tables = [table for table in view.events.records.values() if len(table)]
    origin_ns = min((int(table["start_ns"].min()) for table in tables), default=0)
    out = sys.stdout
    out.write(f"{'rank':>4} {'step':>6} {'action':<16} {'start_s':>13} {'duration_ms':>12} {'kib':>8}\n")
    for number in known if rank is None else [rank]:
        for event in view.events.events(number):
            action = str(recorded_action(event, names))
            start_s = (event.start_ns - origin_ns) * 1e-9
            took = "running" if event.duration_ns < 0 else f"{event.duration_ns * 1e-6:.3f}"
            out.write(f"{number:>4} {event.step:>6} {action:<16} {start_s:>13.6f} {took:>12} {event.kib:>8}\n")
    out.flush()
    for fault in view.events.faults:
        print(f"polyreme: {fault}", file=sys.stderr)


def print_summary(view: RunView, run_figures: RunFigures, console: Console) -> None:
    """The run on one screen."""
    console.print(Text(f"{view.run_id}  {view.status}", style="bold"))
    if view.model:
        parameters = f"{format_count(run_figures.num_parameters or 0)} parameters"
        console.print(Text(f"model   {view.model.name}, {parameters}"))
    steps = f"{run_figures.num_steps}" + (f" of {run_figures.planned_steps}" if run_figures.planned_steps else "")
    loss = (
        "" if run_figures.final_loss is None else f", loss {run_figures.first_loss:.3f} to {run_figures.final_loss:.3f}"
    )
    console.print(Text(f"steps   {steps}{loss}"))
    if view.failure:
        failure = view.failure
        where = f"rank {failure.rank} ({failure.worker}, stage {failure.stage}, {failure.device})"
        console.print(Text(f"failed  {where} in {failure.action}, step {failure.step}", style="bold red"))
        console.print(Text(f"        {failure.exception or 'no exception was reported'}", style="red"))
        if failure.log:
            console.print(Text(f"        log {view.directory / failure.log}"))
    rows = (
        ("step time", run_figures.step_time_s, format_time_s),
        ("tokens/s", run_figures.tokens_per_s, format_count),
        ("bubble", run_figures.bubble, format_percent),
    )
    table = Table("", "predicted", "measured", "error", box=None, pad_edge=False, header_style="dim")
    for name, pair, form in rows:
        error = UNKNOWN if form is format_percent else _error(pair)
        table.add_row(name, _known(form, pair.predicted), _known(form, pair.measured), error)
    console.print(table)
    console.print(_worker_table(run_figures))
    for problem in view.problems:
        console.print(Text(f"not shown: {problem}", style="yellow"))


def _worker_table(run_figures: RunFigures) -> Table:
    """Measured figures of each worker and their error; 80 columns with names of usual length."""
    heads = ("rank", "worker", "device", "layers", "forward", "backward", "bubble", "memory")
    table = Table(*heads, box=None, pad_edge=False, header_style="dim")
    of_rank = {rank: stage for stage in run_figures.stages for rank in stage.ranks}
    for worker in run_figures.workers:
        cells = [f"{worker.rank}", worker.worker, worker.device, worker.layers]
        stage, memory = of_rank.get(worker.rank), worker.memory_bytes
        for pair in (stage.forward_s, stage.backward_s) if stage else (Pair(None, None),) * 2:
            error = "" if pair.error is None else f" {100 * pair.error:+.0f} %"
            cells.append(_known(format_time_s, pair.measured) + error)
        peak = memory.measured if memory.measured is not None else memory.predicted
        limit = worker.memory_limit_bytes
        used = f"{100 * peak / limit:.0f} %" if peak is not None and limit else _known(format_bytes, peak)
        table.add_row(*map(Text, cells), _known(format_percent, worker.bubble.measured), used)
    return table


def summary_data(view: RunView, run_figures: RunFigures) -> dict[str, Any]:
    """Everything a program may want to know of a run, as JSON data."""
    return {
        "schema": "polyreme.run-summary/1",
        "run": view.run_id,
        "directory": str(view.directory),
        "status": view.status,
        "exit_code": view.exit_code,
        "plan": view.plan.digest if view.plan else None,
        "failure": dataclasses.asdict(view.failure) if view.failure else None,
        **dataclasses.asdict(run_figures),
        "problems": list(view.problems),
    }


def _known(form: Any, value: float | None) -> str:
    return UNKNOWN if value is None else str(form(value))


def _error(pair: Pair) -> str:
    return UNKNOWN if pair.error is None else f"{100 * pair.error:+.1f} %"


def _ranges(ranks: list[int]) -> str:
    return "none" if not ranks else f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
