"""`polyreme demo`: the whole path on one machine, without configuration, and honest figures at the end.

Writes the three files a person would write, profiles, plans, measures the equal, the proportional and the planned
split in alternation, trains on by the plan, and prints predicted beside measured.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyreme.cli.inputs import Loaded, load_inputs
from polyreme.cli.plan import make_plan, show
from polyreme.cli.train import to_inputs, with_profile
from polyreme.dashboard.report_page import write_report
from polyreme.planner.assemble import Candidate
from polyreme.runtime.launch import check_platform
from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.io import save
from polyreme.specs.job import AdamW, Batch, JobSpec
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.training.run import run as run_training
from polyreme.training.run_dir import new_run_dir
from polyreme.units import format_time_s

HELP = (
    "Train one small Llama over four unlike emulated devices of this machine: profile, plan, measure the\n"
    "equal, the proportional and the planned split in alternation, train on by the plan, report."
)
EXAMPLE = "polyreme demo"

MODEL = ModelSpec(
    name="llama-7m",
    family=ModelFamily.LLAMA,
    num_layers=18,
    hidden_size=192,
    num_heads=6,
    num_kv_heads=2,
    ffn_hidden_size=512,
    vocab_size=256,
    max_sequence_length=512,
)
CLUSTER = ClusterSpec(
    name="laptop",
    nodes=(
        Node(
            name="laptop",
            devices=(
                DeviceEntry(kind="fast", name="fast"),
                DeviceEntry(kind="medium", name="medium", count=2),
                DeviceEntry(kind="slow", name="slow"),
            ),
            links=NodeLinks(intra="wire"),
        ),
    ),
    device_kinds=(
        DeviceKind(name="fast", driver="emulated", memory_bytes=512e6, speed=4.0),
        DeviceKind(name="medium", driver="emulated", memory_bytes=256e6, speed=2.0),
        DeviceKind(name="slow", driver="emulated", memory_bytes=128e6, speed=1.0),
    ),
    link_kinds=(LinkKind(name="wire", bandwidth_bytes_per_s=1e9, latency_s=100e-6),),
)
PROFILE_BUDGET_S = 5.0
ROUNDS = 2
STEPS_PER_ROUND = 3
"""Of which the first is not counted: it also warms caches and connections up."""
TRAINED_STEPS = 6


@dataclass(frozen=True, slots=True)
class Split:
    """One way to cut the model, and its step times measured so far."""

    name: str
    candidate: Candidate
    measured_s: list[float]

    @property
    def median_s(self) -> float:
        """Median measured step time."""
        return statistics.median(self.measured_s)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--runs", type=Path, metavar="DIR", default=Path("runs"), help="where runs are kept: ./runs")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """The whole demonstration."""
    check_platform()
    started = time.monotonic()
    folder = new_run_dir(args.runs, "demo")
    _say(f"demo: files in {folder}")
    loaded = _write_inputs(folder)
    _say("profile: timing each layer kind on this machine")
    loaded = with_profile(loaded, PROFILE_BUDGET_S)
    if loaded.profile is not None:
        save(folder / "profile.json", loaded.profile)
    found, alternatives = make_plan(loaded)
    save(folder / "plan.json", found.best.plan)
    if not args.json:
        show(found, alternatives, loaded.fleet)
    by_name = {one.name: one.candidate for one in alternatives if one.candidate is not None}
    splits = [
        Split("equal", by_name["equal split"], []),
        Split("proportional", by_name["speed-proportional"], []),
        Split("planned", found.best, []),
    ]
    _measure(splits, loaded, folder)
    _say(f"train: {TRAINED_STEPS} steps by the plan")
    run_dir = folder / "train"
    result = run_training(to_inputs(found.best.plan, loaded, TRAINED_STEPS), run_dir)
    page = write_report(run_dir)
    losses = [metrics.loss for metrics in result.steps]
    _result(splits, losses, page, time.monotonic() - started, as_json=args.json)
    return 0


def _write_inputs(folder: Path) -> Loaded:
    job = JobSpec(
        name="demo",
        model="model.json",
        cluster="cluster.json",
        batch=Batch(sequences=16, tokens_per_sequence=96),
        optimizer=AdamW(learning_rate=1e-3),
        steps=STEPS_PER_ROUND,
    )
    save(folder / "model.json", MODEL)
    save(folder / "cluster.json", CLUSTER)
    save(folder / "job.json", job)
    return load_inputs(folder / "job.json")


def _measure(splits: list[Split], loaded: Loaded, folder: Path) -> None:
    """Run every split in turn, round after round, so that a busy moment of the machine does not favour one."""
    for round_number in range(1, ROUNDS + 1):
        for split in splits:
            inputs = to_inputs(split.candidate.plan, loaded, STEPS_PER_ROUND)
            run_dir = folder / f"{split.name}-{round_number}"
            result = run_training(inputs, run_dir, save_weights=False)
            times = [metrics.step_time_s for metrics in result.steps[1:]]
            split.measured_s.extend(times)
            _say(f"round {round_number} of {ROUNDS}: {split.name:<12} {format_time_s(statistics.median(times))} a step")


def _result(splits: list[Split], losses: list[float], page: Path, elapsed_s: float, *, as_json: bool) -> None:
    equal, planned = splits[0], splits[-1]
    measured_gain = equal.median_s / planned.median_s
    predicted_gain = equal.candidate.step_time_s / planned.candidate.step_time_s
    if as_json:
        content: Mapping[str, object] = {
            "splits": {
                split.name: {"predicted_s": split.candidate.step_time_s, "measured_s": split.median_s}
                for split in splits
            },
            "gain": {"predicted": predicted_gain, "measured": measured_gain},
            "losses": losses,
            "report": str(page),
            "elapsed_s": elapsed_s,
        }
        print(json.dumps(content, sort_keys=True))
        return
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from polyreme.cli.tables import console  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("split", "layers per device", "predicted", "measured", "error"):
        table.add_column(name, justify="left" if name in ("split", "layers per device") else "right")
    for split in splits:
        predicted = split.candidate.step_time_s
        stages = zip(split.candidate.plan.workers, split.candidate.plan.pipelines[0].stages, strict=True)
        layers = ", ".join(f"{worker.split('/')[1]} {stage.layers[1] - stage.layers[0]}" for worker, stage in stages)
        error = f"{split.median_s / predicted - 1:+.1%}"
        table.add_row(split.name, layers, format_time_s(predicted), format_time_s(split.median_s), error)
    console().print(table)
    print(f"gain of the plan over the equal split: {measured_gain:.2f} x measured, {predicted_gain:.2f} x predicted")
    print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")
    print(f"report: {page}")
    print(f"took {elapsed_s:.0f} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
