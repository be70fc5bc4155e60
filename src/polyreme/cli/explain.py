"""`polyreme explain`: says what binds a plan."""

import argparse
import json
from pathlib import Path

from polyreme.cli.inputs import add_source_arguments, load_planned, moved_files
from polyreme.planner.explain import explain

HELP = "Say what binds a plan: the stage that sets the pace, tight memory, the bubble, devices left out and why."
EXAMPLE = "polyreme explain plan.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument("--json", action="store_true", help="print the sentences as a JSON list")
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Explain."""
    plan, loaded = load_planned(args.plan, **moved_files(args))
    lines = explain(plan, loaded.costs, loaded.job)
    print(json.dumps(lines) if args.json else "\n".join(lines))
    return 0
