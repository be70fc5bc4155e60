"""`polyreme simulate`: replays a plan's action lists and shows what one step will be."""

import argparse
import json
from pathlib import Path

from polyreme.cli.inputs import add_source_arguments, load_planned, moved_files
from polyreme.schedules.action import print_actions
from polyreme.simulator.simulate import simulate
from polyreme.specs.io import to_data
from polyreme.telemetry.trace import write_trace

HELP = "Replay the action lists of a plan, the same that `train` executes, and predict one step."
EXAMPLE = "polyreme simulate plan.json --trace trace.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the timeline for Chrome or Perfetto")
    parser.add_argument("--actions", action="store_true", help="print the action lists as text and nothing else")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Replay and show."""
    plan, loaded = load_planned(args.plan, **moved_files(args))
    simulation = simulate(plan, loaded.costs, loaded.job.limits.memory_fraction)
    report = simulation.full_report()
    if args.trace is not None:
        lanes = {worker.rank: f"{worker.worker} ({worker.device})" for worker in report.workers}
        spans = (
            (span.rank, span.action, span.action.rsplit(".", 1)[-1].rstrip("0123456789"), span.start_s, span.stop_s)
            for span in report.timeline
        )
        write_trace(args.trace, lanes, spans)
    if args.actions:
        print(print_actions(simulation.lists), end="")
    elif args.json:
        print(json.dumps(to_data(report), sort_keys=True))
    else:
        from polyreme.cli.tables import console, interval_text, stage_table  # noqa: PLC0415

        out = console()
        out.print(stage_table(report))
        out.print(f"predicted {interval_text(report)}, bubble {report.bubble_fraction:.1%}")
        if args.trace is not None:
            out.print(f"trace: {args.trace}")
    return 0
