"""`polyreme profile`: times a model's layers on the devices at hand."""

import argparse
import json
from pathlib import Path

from polyreme.cli.inputs import load_inputs
from polyreme.cli.plan import job_argument
from polyreme.runtime.launch import usable_cores
from polyreme.specs.io import save, to_data
from polyreme.specs.profile import ProfileSpec
from polyreme.units import format_time_s

HELP = "Time forward, backward and update of every layer kind on the devices at hand, in seconds."
EXAMPLE = "polyreme profile job.yaml -o profile.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("job_file", nargs="?", type=Path, metavar="JOB", help="the job; the same as --job")
    parser.add_argument("--job", type=Path, metavar="FILE", help="job.yaml")
    parser.add_argument("--model", type=Path, metavar="FILE", help="model.yaml or a Hugging Face config.json")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="cluster.yaml")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("profile.json"), help="default: profile.json"
    )
    parser.add_argument("--allow-code", action="store_true", help="run the code that a model of family blocks names")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Measure, write, show."""
    from polyreme.profiler.profile import make_profile  # noqa: PLC0415 - loads torch: not before inputs are known good

    loaded = load_inputs(job_argument(args), args.model, args.cluster)
    base = loaded.model_path.parent if args.allow_code else None
    profile = make_profile(loaded.model, loaded.job, loaded.fleet, usable_cores(), code_base=base)
    save(args.output, profile)
    if args.json:
        print(json.dumps(to_data(profile), sort_keys=True))
    else:
        show(profile)
        print(f"written: {args.output}")
    return 0


def show(profile: ProfileSpec) -> None:
    """One row per timing."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from polyreme.cli.tables import console  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("device", "layer", "microbatch", "forward", "backward", "update", "spread", "samples"):
        table.add_column(name, justify="left" if name in ("device", "layer") else "right", no_wrap=True)
    for timing in profile.layers:
        middle = timing.forward.median_s + timing.backward.median_s
        wide = timing.forward.p90_s + timing.backward.p90_s - timing.forward.p10_s - timing.backward.p10_s
        table.add_row(
            timing.device,
            timing.layer,
            f"{timing.sequences} x {timing.tokens_per_sequence}",
            format_time_s(timing.forward.median_s),
            format_time_s(timing.backward.median_s),
            format_time_s(timing.update.median_s),
            f"{wide / middle:.0%}" if middle else "-",
            str(timing.forward.num_samples),
        )
    console().print(table)
