"""1F1B against ZB-H1 and ZB-V in a lab of equal devices, where the simulator says that zero bubble should win.

    sudo .venv/bin/python benchmarks/bench_zero_bubble.py [--rounds 5] [--microbatches 8]

The same stages on the same devices run under one schedule and the other in turn. Figures are as in bench_lab.py.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import bench_lab
from bench_lab import MODEL, NUM_TOKENS, interval

from polyreme.catalog.fleet import build_fleet
from polyreme.costs.model import CostModel
from polyreme.lab.lab import why_not
from polyreme.layout.owners import interval as cut
from polyreme.planner.assemble import Question, assemble
from polyreme.profiler.profile import make_profile
from polyreme.runtime.launch import usable_cores
from polyreme.simulator.simulate import simulate
from polyreme.specs.device import DeviceKind
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import AdamW, Batch, JobSpec
from polyreme.specs.plan import Inputs as PlanInputs
from polyreme.specs.plan import Plan, Schedule
from polyreme.training.run import run
from polyreme.training.runnable import Inputs

SCHEDULES = (ScheduleName.ONE_F_ONE_B, ScheduleName.ZB_H1, ScheduleName.ZB_V)


class Contest:
    """Plans that differ in their schedule only (ZB-V folds the same layers over the same devices)."""

    def __init__(self, microbatches: int, steps: int) -> None:
        batch = Batch(sequences=microbatches, tokens_per_sequence=NUM_TOKENS)
        optimizer = AdamW(learning_rate=1e-4)
        self.job = JobSpec(name="zb", model="m", cluster="c", batch=batch, optimizer=optimizer, steps=steps)
        self.cluster = bench_lab.cluster_of("ZB")
        fleet = build_fleet(self.cluster)
        profile = make_profile(MODEL, self.job, fleet, usable_cores(), 12.0)
        self.costs = CostModel(MODEL, fleet, self.job.precision, NUM_TOKENS, profile)
        question = Question(self.job, self.costs, PlanInputs(model="m", cluster="c", job="j"))
        total = MODEL.num_layers + 2
        stages = [(device, range(*cut(total, 4, number))) for number, device in enumerate(fleet.devices)]
        halves = [range(*cut(total, 8, number)) for number in range(8)]
        plain = assemble(question, stages, 1).plan
        self.plans: dict[ScheduleName, Plan] = {}
        for name in SCHEDULES:
            plan = plain
            if name is ScheduleName.ZB_V:
                plan = self._folded(plain, fleet.devices[0].kind, halves)
            pipeline = dataclasses.replace(plan.pipelines[0], schedule=Schedule(name=name))
            self.plans[name] = dataclasses.replace(plan, pipelines=(pipeline,))

    def _folded(self, plain: Plan, kind: DeviceKind, halves: Sequence[range]) -> Plan:
        stages = []
        for number, layers in enumerate(halves):
            like = plain.pipelines[0].stages[min(number, 7 - number)]
            time_s = self.costs.stage_time(kind, layers, 1)
            stages.append(dataclasses.replace(like, layers=(layers.start, layers.stop), time_s=time_s))
        return dataclasses.replace(plain, pipelines=(dataclasses.replace(plain.pipelines[0], stages=tuple(stages)),))

    def predicted_s(self, name: ScheduleName) -> float:
        """Step time by the simulator."""
        return simulate(self.plans[name], self.costs).report.step_time_s[1]

    def measure(self, name: ScheduleName, folder: Path) -> float:
        """Median step time over CPU seconds in layers; the first step is left out."""
        inputs = Inputs(plan=self.plans[name], model=MODEL, cluster=self.cluster, job=self.job, base=Path())
        kept = run(inputs, folder, save_weights=False, in_lab=True).steps[1:]
        return statistics.median(step.step_time_s / step.compute_cpu_s for step in kept)


def print_table(contest: Contest, rounds: Sequence[Mapping[ScheduleName, float]]) -> None:
    first = SCHEDULES[0]
    print("| schedule | step over CPU s in layers | predicted step s | gain over 1F1B | predicted gain |")
    print("| --- | --- | --- | --- | --- |")
    for name in SCHEDULES:
        gains = interval([one[first] / one[name] for one in rounds])
        predicted = contest.predicted_s(first) / contest.predicted_s(name)
        step = interval([one[name] for one in rounds])
        print(f"| {name} | {step} | {contest.predicted_s(name):.3f} | {gains} | {predicted:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="1F1B against zero bubble in the lab")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    args = parser.parse_args()
    if (reason := why_not()) is not None:
        sys.exit(f"no lab here: {reason}")
    contest = Contest(args.microbatches, args.steps + 1)
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            rounds.append({name: contest.measure(name, Path(folder) / f"{number}-{name}") for name in SCHEDULES})
            print(rounds[-1], file=sys.stderr, flush=True)
    print_table(contest, rounds)


if __name__ == "__main__":
    main()
