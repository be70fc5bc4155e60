"""`polyreme train`: runs a plan, or plans first if it is given a job only."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from polyreme.cli.inputs import Loaded, load_inputs, load_planned
from polyreme.cli.plan import job_argument, make_plan, show
from polyreme.dashboard.report_page import write_report
from polyreme.dashboard.run_folder import is_run_folder
from polyreme.errors import InputError, PolyremeError
from polyreme.lab.lab import why_not
from polyreme.runtime.faults import parse_fault
from polyreme.runtime.launch import check_platform, usable_cores
from polyreme.simulator.simulate import simulate
from polyreme.specs.plan import Plan
from polyreme.training.run import StepMetrics
from polyreme.training.run import run as run_training
from polyreme.training.run_dir import new_run_dir
from polyreme.training.runnable import Inputs, check_runnable
from polyreme.units import format_time_s

HELP = "Run a plan: one process per worker, real training. Given a job only, profile and plan first."
EXAMPLE = "polyreme train --plan plan.json --job job.yaml"
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("job_file", nargs="?", type=Path, metavar="JOB", help="the job; the same as --job")
    parser.add_argument("--job", type=Path, metavar="FILE", help="job.yaml")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="plan.json; without it a plan is made first")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="profile.json to plan with")
    parser.add_argument("--steps", type=int, metavar="N", help="steps to train, instead of the job's")
    parser.add_argument("--runs", type=Path, metavar="DIR", default=Path("runs"), help="where runs are kept: ./runs")
    parser.add_argument(
        "--inject", metavar="FAULT", help="a scripted fault: rank=1,step=2,action=a.1.F3,kind=kill|raise|stop|hang"
    )
    parser.add_argument(
        "--lab",
        action="store_true",
        help="limit emulated devices and links by the kernel instead of waiting (Linux, root)",
    )
    parser.add_argument("--allow-code", action="store_true", help="run the code that a model of family blocks names")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every step also on a terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON line per step and the result")


def run(args: argparse.Namespace) -> int:
    """Plan if needed, train, write the report."""
    check_platform()
    fault = parse_fault(args.inject) if args.inject else None
    if args.steps is not None and args.steps < 1:
        raise InputError.single("--steps", f"{args.steps} is less than 1")
    plan, loaded = _planned(args)
    inputs = to_inputs(plan, loaded, args.steps)
    if args.allow_code:
        inputs = dataclasses.replace(inputs, code_base=loaded.model_path.parent)
    check_runnable(inputs)
    reason = why_not() if args.lab else None
    in_lab = args.lab and reason is None
    if reason is not None:
        print(f"no lab here ({reason}): devices are emulated by waiting", file=sys.stderr)
    run_dir = new_run_dir(args.runs, loaded.job.name)
    reporter = _Reporter(args, inputs.job.steps)
    reporter.say(f"run: {run_dir}")
    reporter.start()
    try:
        result = run_training(inputs, run_dir, reporter.step, fault=fault, in_lab=in_lab)
    except PolyremeError:
        reporter.close()
        if is_run_folder(run_dir):
            reporter.say(f"report: {write_report(run_dir)}")
        raise
    reporter.close()
    page = write_report(run_dir)
    if args.json:
        print(json.dumps({"run": str(run_dir), "steps": len(result.steps), "report": str(page)}))
    reporter.say(f"report: {page}")
    return INTERRUPTED if result.interrupted else 0


def to_inputs(plan: Plan, loaded: Loaded, steps: int | None = None) -> Inputs:
    """What a run is made from, with the prediction that it will be shown beside."""
    job = loaded.job if steps is None else dataclasses.replace(loaded.job, steps=steps)
    return Inputs(
        plan=plan,
        model=loaded.model,
        cluster=loaded.cluster,
        job=job,
        base=loaded.job_path.parent,
        profile=loaded.profile,
        prediction=simulate(plan, loaded.costs, job.limits.memory_fraction).full_report(),
    )


def with_profile(loaded: Loaded, budget_s: float = 6.0, *, allow_code: bool = False) -> Loaded:
    """The inputs with a fresh profile, if they have none and their devices can be timed here."""
    if loaded.profile is not None or all(d.kind.driver not in ("cpu", "emulated") for d in loaded.fleet.devices):
        return loaded
    from polyreme.profiler.profile import make_profile  # noqa: PLC0415 - loads torch

    base = loaded.model_path.parent if allow_code else None
    profile = make_profile(loaded.model, loaded.job, loaded.fleet, usable_cores(), budget_s, base)
    return dataclasses.replace(loaded, profile=profile)


def _planned(args: argparse.Namespace) -> tuple[Plan, Loaded]:
    if args.plan is None:
        loaded = with_profile(load_inputs(job_argument(args), profile=args.profile), allow_code=args.allow_code)
        found, alternatives = make_plan(loaded)
        if not args.json:
            show(found, alternatives, loaded.fleet)
        return found.best.plan, loaded
    return load_planned(args.plan, job=args.job or args.job_file, profile=args.profile)


class _Reporter:
    """Progress: a bar on a terminal, a line a step otherwise; on standard error, so that results stay apart."""

    def __init__(self, args: argparse.Namespace, num_steps: int) -> None:
        self.as_json = args.json
        self.num_steps = num_steps
        self._bar = None
        if sys.stderr.isatty() and not args.verbose and not args.json:
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("starting", total=num_steps)

    def start(self) -> None:
        """Steps follow."""
        if self._bar is not None:
            self._bar.start()

    def say(self, text: str) -> None:
        """A line for a person."""
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def step(self, metrics: StepMetrics) -> None:
        """A step has ended."""
        text = f"loss {metrics.loss:.4f}  {format_time_s(metrics.step_time_s)} a step"
        if metrics.evaluation_loss is not None:
            text += f"  evaluation loss {metrics.evaluation_loss:.4f}"
        if self.as_json:
            print(json.dumps(dataclasses.asdict(metrics)), flush=True)
        elif self._bar is not None:
            self._bar.update(self._task, advance=1, description=text)
        else:
            rate = metrics.tokens / metrics.step_time_s
            print(
                f"step {metrics.step + 1}/{self.num_steps}  {text}  {rate:,.0f} tokens/s", file=sys.stderr, flush=True
            )

    def close(self) -> None:
        """No more steps."""
        if self._bar is not None:
            self._bar.stop()
