"""`polyreme plan`: finds the best plan and shows it beside what one would do without a planner."""

import argparse
import dataclasses
import gc
import json
from pathlib import Path
from typing import Any

from polyreme.catalog.fleet import Fleet
from polyreme.cli.inputs import Loaded, load_inputs
from polyreme.errors import InputError
from polyreme.planner.assemble import Candidate, Question
from polyreme.planner.baselines import Baseline
from polyreme.planner.decide import decide
from polyreme.planner.search import Found
from polyreme.planner.space import describe
from polyreme.specs.io import save, to_data
from polyreme.specs.plan import Plan

HELP = (
    "Find the best plan for a model on a cluster: which devices, in which order, how many layers each,\n"
    "which microbatch size. Writes plan.json and shows the plan beside its alternatives."
)
EXAMPLE = "polyreme plan --model model.yaml --cluster cluster.yaml --job job.yaml -o plan.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("job_file", nargs="?", type=Path, metavar="JOB", help="the job; the same as --job")
    parser.add_argument("--job", type=Path, metavar="FILE", help="job.yaml")
    parser.add_argument("--model", type=Path, metavar="FILE", help="model.yaml or a Hugging Face config.json")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="cluster.yaml")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="profile.json, as `polyreme profile` writes it")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("plan.json"), help="default: plan.json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    """Plan, write, show."""
    gc.disable()  # a search makes many small tuples, none in a cycle: collecting takes a tenth of the command
    loaded = load_inputs(job_argument(args), args.model, args.cluster, args.profile)
    found, alternatives = make_plan(loaded)
    save(args.output, with_sources(found.best.plan, loaded, args.output))
    if args.json:
        print(json.dumps(_summary(found, alternatives), sort_keys=True))
    else:
        show(found, alternatives, loaded.fleet)
        print(f"written: {args.output}")
    return 0


def job_argument(args: argparse.Namespace) -> Path:
    """The job file, given by position or by option. InputError if neither or both are."""
    if (args.job is None) == (args.job_file is None):
        raise InputError.single("command line", "give the job once", fix="for example `--job job.yaml`")
    path: Path = args.job or args.job_file
    return path


def make_plan(loaded: Loaded) -> tuple[Found, tuple[Baseline, ...]]:
    """The best plan and its alternatives. InfeasibleError if none fits."""
    decision = decide(Question(loaded.job, loaded.costs, loaded.inputs))
    return decision.found, decision.alternatives


def with_sources(plan: Plan, loaded: Loaded, path: Path) -> Plan:
    """The plan with the places of its inputs relative to where it is written."""
    return dataclasses.replace(plan, sources=loaded.sources(path))


def show(found: Found, alternatives: tuple[Baseline, ...], fleet: Fleet) -> None:
    """Tables on standard output."""
    from polyreme.cli.tables import comparison_table, console, interval_text, notes, stage_table  # noqa: PLC0415

    out, report = console(), found.best.simulation.report
    pipeline = found.best.plan.pipelines[0]
    out.print(
        f"{pipeline.schedule.name}, {pipeline.microbatches} microbatches of {pipeline.microbatch_sequences} "
        f"sequences of {found.best.plan.batch.tokens_per_sequence} tokens"
    )
    out.print(stage_table(report))
    used = describe([fleet.device(worker) for worker in found.best.plan.workers])
    out.print(comparison_table(found.best, used, alternatives))
    out.print(
        f"predicted {interval_text(report)}, bubble {report.bubble_fraction:.1%}, {report.tokens_per_s:,.0f} tokens/s"
    )
    for line in notes(alternatives, found.left_out):
        out.print(line)


def _summary(found: Found, alternatives: tuple[Baseline, ...]) -> dict[str, Any]:
    return {
        "plan": to_data(found.best.plan),
        "report": _without_timeline(found.best),
        "alternatives": [
            {
                "name": one.name,
                "devices": one.devices,
                "step_time_s": one.candidate.step_time_s if one.candidate is not None else None,
                "problem": one.problem,
            }
            for one in alternatives
        ],
        "left_out": [{"kind": one.kind, "devices": one.num_devices, "reason": one.reason} for one in found.left_out],
    }


def _without_timeline(candidate: Candidate) -> dict[str, Any]:
    return {key: value for key, value in to_data(candidate.simulation.report).items() if key != "timeline"}
