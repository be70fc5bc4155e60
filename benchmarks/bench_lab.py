"""The lab clusters L1, L2 and L3: the planned split against others, measured in alternation, beside what is predicted.

    sudo .venv/bin/python benchmarks/bench_lab.py L1 [--rounds 5] [--steps 2] [--microbatches 64]

Every round runs each split once, in turn. A split's figure is the median step time of a run, the first step left out,
over the CPU seconds that the layers took in the same steps: so the machine's mood cancels, and what remains is bubbles,
imbalance, messages and the runtime itself. Efficiency is (CPU seconds in the layers / total speed) / step time of the
planned split. Gains have 90 % intervals over the rounds (Student's t).
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyreme.catalog.fleet import build_fleet
from polyreme.costs.model import CostModel
from polyreme.lab.lab import why_not
from polyreme.planner.assemble import Candidate, Question, assemble
from polyreme.planner.decide import decide
from polyreme.profiler.profile import make_profile
from polyreme.runtime.launch import usable_cores
from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import AdamW, Batch, JobSpec
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Inputs as PlanInputs
from polyreme.specs.profile import ProfileSpec
from polyreme.training.run import run
from polyreme.training.runnable import Inputs

SPEEDS = {
    "L1": (0.30, 0.30, 0.15, 0.15),
    "L2": (0.33, 0.33, 0.10, 0.10),
    "L3": (0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05),
    "ZB": (0.22, 0.22, 0.22, 0.22),
}
NODES = {"L1": (4,), "L2": (4,), "L3": (4, 3), "ZB": (4,)}
LAN = LinkKind(name="lan", bandwidth_bytes_per_s=25e6, latency_s=1e-4)
BUS = LinkKind(name="bus", bandwidth_bytes_per_s=2e9, latency_s=5e-5)
STUDENT_T = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
"""95 % quantiles of Student's t for 1 to 10 degrees of freedom: two-sided intervals of 90 %."""
MODEL = ModelSpec(
    name="lab-24",
    family=ModelFamily.LLAMA,
    num_layers=24,
    hidden_size=192,
    num_heads=6,
    num_kv_heads=2,
    ffn_hidden_size=512,
    vocab_size=256,
)
NUM_TOKENS = 96


def cluster_of(name: str) -> ClusterSpec:
    """One node, or two with 200 Mbit/s between; a device kind per speed."""
    speeds, nodes, first = SPEEDS[name], [], 0
    for number, size in enumerate(NODES[name]):
        entries = tuple(
            DeviceEntry(kind=f"s{round(100 * speed)}", name=f"d{first + index}-")
            for index, speed in enumerate(speeds[first : first + size])
        )
        nodes.append(Node(name=f"node{number}", devices=entries, links=NodeLinks(intra="bus", inter="lan")))
        first += size
    kinds = tuple(
        DeviceKind(name=f"s{round(100 * speed)}", driver="emulated", memory_bytes=2e9, speed=speed)
        for speed in sorted(set(speeds))
    )
    return ClusterSpec(name=name, nodes=tuple(nodes), device_kinds=kinds, link_kinds=(LAN, BUS))


class Lab:
    """One cluster, its profile, its candidate plans and the runs of them."""

    def __init__(self, name: str, microbatches: int, steps: int, schedule: ScheduleName | None) -> None:
        self.name, self.steps = name, steps
        self.job = JobSpec(
            name=name,
            model="m",
            cluster="c",
            batch=Batch(sequences=microbatches, tokens_per_sequence=NUM_TOKENS),
            optimizer=AdamW(learning_rate=1e-4),
            steps=steps,
            schedule=schedule,
        )
        self.cluster = cluster_of(name)
        fleet = build_fleet(self.cluster)
        self.profile: ProfileSpec = make_profile(MODEL, self.job, fleet, usable_cores(), 12.0)
        costs = CostModel(MODEL, fleet, self.job.precision, NUM_TOKENS, self.profile)
        question = Question(self.job, costs, PlanInputs(model="m", cluster="c", job="j"))
        decision = decide(question)
        self.splits: dict[str, Candidate] = {"planned": self._with_one_sequence(question, decision.found.best)}
        for one in decision.alternatives:
            if one.candidate is not None:
                self.splits[one.name] = self._with_one_sequence(question, one.candidate)

    def _with_one_sequence(self, question: Question, candidate: Candidate) -> Candidate:
        """The same stages with microbatches of one sequence, so that all splits have the same number of them."""
        fleet, (pipeline,) = question.costs.fleet, candidate.plan.pipelines
        devices = [fleet.device(worker) for worker in candidate.plan.workers]
        stages = [(device, range(*stage.layers)) for device, stage in zip(devices, pipeline.stages, strict=True)]
        return assemble(question, stages, 1)

    def measure(self, candidate: Candidate, folder: Path) -> tuple[float, float, float]:
        """Median step time, CPU seconds inside layers and CPU seconds in all of a run; the first step is left out."""
        inputs = Inputs(plan=candidate.plan, model=MODEL, cluster=self.cluster, job=self.job, base=Path())
        kept = run(inputs, folder, save_weights=False, in_lab=True).steps[1:]
        columns = zip(*((step.step_time_s, step.compute_cpu_s, step.cpu_s) for step in kept), strict=True)
        step_s, layers_s, all_s = map(statistics.median, columns)
        return step_s, layers_s, all_s

    def round(self, folder: Path) -> dict[str, tuple[float, float, float]]:
        """Every split measured once."""
        return {name: self.measure(one, folder / name.replace(" ", "-")) for name, one in self.splits.items()}


def interval(values: Sequence[float]) -> str:
    """`1.50 [1.45, 1.55]`: mean and its 90 % interval."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    half = STUDENT_T[min(len(values) - 1, len(STUDENT_T)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


COLUMNS = (
    "split",
    "layers per device",
    "step over CPU s in layers",
    "CPU s in layers",
    "CPU s beside them",
    "step s",
    "predicted step s",
    "gain over equal split",
    "predicted gain",
)


def print_table(lab: Lab, rounds: Sequence[Mapping[str, tuple[float, float, float]]]) -> None:
    """One row per split, then what the bars ask for."""
    equal, planned = lab.splits["equal split"], lab.splits["planned"]
    relative = [{name: step_s / layers_s for name, (step_s, layers_s, _) in one.items()} for one in rounds]
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for name, candidate in lab.splits.items():
        step_s, layers_s, all_s = (statistics.median(one[name][column] for one in rounds) for column in range(3))
        cells = (
            name,
            ", ".join(str(stage.layers[1] - stage.layers[0]) for stage in candidate.plan.pipelines[0].stages),
            interval([one[name] for one in relative]),
            f"{layers_s:.2f}",
            f"{all_s - layers_s:.2f}",
            f"{step_s:.2f}",
            f"{candidate.step_time_s:.2f}",
            interval([one["equal split"] / one[name] for one in relative]),
            f"{equal.step_time_s / candidate.step_time_s:.3f}",
        )
        print(f"| {' | '.join(cells)} |")
    speed = sum(SPEEDS[lab.name])
    gain = statistics.mean(one["equal split"] / one["planned"] for one in relative)
    print(f"\nefficiency at {speed:.2f} cores: {interval([1 / speed / one['planned'] for one in relative])}")
    print(f"measured over predicted gain: {gain / (equal.step_time_s / planned.step_time_s):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="planned against other splits in a lab cluster")
    parser.add_argument("cluster", choices=sorted(SPEEDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=64)
    args = parser.parse_args()
    if (reason := why_not()) is not None:
        sys.exit(f"no lab here: {reason}")
    lab = Lab(args.cluster, args.microbatches, args.steps + 1, None)
    rounds: list[dict[str, tuple[float, float, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            rounds.append(lab.round(Path(folder) / str(number)))
            print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    print_table(lab, rounds)


if __name__ == "__main__":
    main()
