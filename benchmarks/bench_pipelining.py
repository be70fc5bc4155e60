"""polyreme's runtime against torch.distributed.pipelining on uniform plans: same weights, same data, same processes.

    python benchmarks/bench_pipelining.py [--pairs 5] [--schedules 1f1b interleaved zb-v]

Four workers hold both runtimes side by side and run a step of one and of the other in turn. Reported are CPU seconds of
a step summed over the workers (all threads; wall time on few cores says nothing about a schedule), the largest relative
difference of the losses, and what a runtime costs beyond the computation: CPU of all workers minus CPU of one process
that computes the same, per stage and microbatch. The optimizer is left out on both sides.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyreme.layout.layers import num_layers
from polyreme.runtime.launch import Failure, Workers
from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Precision, ScheduleName
from polyreme.specs.io import save
from polyreme.specs.job import Batch, JobSpec, TextData
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Group, Inputs, Pipeline, Plan, Predicted, Schedule, Stage, StageTime
from polyreme.training.settings import WorkerSettings

NUM_WORKERS = 4
WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A model, cut evenly, and its batch."""

    name: str
    blocks: int
    hidden: int
    tokens: int
    microbatches: int
    sequences: int


CASES = (
    Case("layers of 20 ms", 16, 256, 128, 8, 2),
    Case("empty layers", 8, 32, 16, 64, 1),
)


def model_of(case: Case) -> ModelSpec:
    return ModelSpec(
        name="bench",
        family=ModelFamily.LLAMA,
        num_layers=case.blocks,
        hidden_size=case.hidden,
        num_heads=4,
        ffn_hidden_size=3 * case.hidden,
        vocab_size=256,
    )


def plan_of(case: Case, schedule: ScheduleName) -> Plan:
    """Four workers: one stage each, two in turn, or two folded."""
    stages_each = 1 if schedule is ScheduleName.ONE_F_ONE_B else 2
    num_stages = NUM_WORKERS * stages_each
    per_stage = case.blocks // num_stages
    edges = [0, *(1 + per_stage * stage for stage in range(1, num_stages)), case.blocks + 2]
    stages = []
    for stage in range(num_stages):
        folded = schedule is ScheduleName.ZB_V and stage >= NUM_WORKERS
        rank = num_stages - 1 - stage if folded else stage % NUM_WORKERS
        stages.append(
            Stage(
                layers=(edges[stage], edges[stage + 1]),
                groups=(Group(ranks=(rank,), sequences=case.sequences),),
                precision=Precision.FP32,
                time_s=StageTime(f=1.0, i=1.0, w=1.0),
            )
        )
    return Plan(
        created_by="benchmark",
        digest="0" * 32,
        inputs=Inputs(model="m", cluster="c", job="j"),
        batch=Batch(sequences=case.microbatches * case.sequences, tokens_per_sequence=case.tokens),
        workers=tuple(f"n/w{rank}" for rank in range(NUM_WORKERS)),
        pipelines=(
            Pipeline(
                name="a",
                microbatches=case.microbatches,
                microbatch_sequences=case.sequences,
                schedule=Schedule(name=schedule),
                stages=tuple(stages),
            ),
        ),
        predicted=Predicted(step_time_s=(1.0, 1.0, 1.0)),
    )


def write_inputs(folder: Path, case: Case, schedule: ScheduleName) -> None:
    plan = plan_of(case, schedule)
    text = folder / "text"
    text.mkdir(parents=True)
    (text / "a.txt").write_text("all work and no play " * 2000, encoding="utf-8")
    (folder / "logs").mkdir()
    (folder / "events").mkdir()
    cluster = ClusterSpec(
        name="n",
        nodes=(Node(name="n", devices=(DeviceEntry(kind="core", name="w", count=4),), links=NodeLinks(intra="wire")),),
        device_kinds=(DeviceKind(name="core", driver="cpu", memory_bytes=4e9),),
        link_kinds=(LinkKind(name="wire", bandwidth_bytes_per_s=1e10, latency_s=1e-5),),
    )
    job = JobSpec(name="bench", model="m", cluster="c", batch=plan.batch, data=TextData(paths=(str(text),)), steps=1000)
    for name, value in (("plan", plan), ("model", model_of(case)), ("config", job), ("cluster", cluster)):
        save(folder / f"{name}.json", value)


def worker_main(content: bytes, pipe: Any, listener: Any) -> None:
    """One worker: both runtimes, alternating; rank 0 reports the sums over all workers."""
    import os  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    from polyreme.runtime.launch import die_with_launcher  # noqa: PLC0415

    die_with_launcher()
    settings = WorkerSettings.from_message(content)
    try:
        report = measure(replace(settings, fault=None), listener, int(settings.fault or 0))
        if settings.rank == 0:
            pipe.send_bytes(json.dumps({"type": "result", **report}).encode())
    except BaseException:  # noqa: BLE001 - the launcher prints it
        pipe.send_bytes(json.dumps({"type": "failed", "exception": traceback.format_exc()}).encode())
        os._exit(4)
    os._exit(0)


def measure(settings: WorkerSettings, listener: Any, pairs: int) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from polyreme.runtime.gradsync import GradientSync  # noqa: PLC0415
    from polyreme.training.assembly import Parameters, assemble  # noqa: PLC0415
    from polyreme.training.update import LossScale, StepUpdate  # noqa: PLC0415

    class NoUpdate(StepUpdate):
        def step(self) -> None:
            for parameter in self.sync.parameters.values():
                parameter.grad = None

    def keep(job: JobSpec, sync: GradientSync, _: Parameters, __: Any, scale: LossScale) -> StepUpdate:
        return NoUpdate(sync, None, job.optimizer, job.steps, scale)  # type: ignore[arg-type]

    torch.set_num_threads(1)
    work = assemble(settings, listener, keep)
    ours: list[float] = []
    theirs: list[float] = []
    losses: list[tuple[float, float]] = []
    torch_step = make_torch_step(work)
    for step in range(WARM_UP_STEPS + pairs):
        for runtime in ("ours", "torch") if step % 2 else ("torch", "ours"):
            dist.barrier()
            before = time.process_time()
            if runtime == "ours":
                loss_ours = work.run_step(step)[0]
            else:
                loss_torch = torch_step(step)
            spent = torch.tensor([time.process_time() - before], dtype=torch.float64)
            dist.all_reduce(spent)
            if step >= WARM_UP_STEPS:
                (ours if runtime == "ours" else theirs).append(float(spent))
        both = torch.tensor([loss_ours, loss_torch], dtype=torch.float64)
        dist.all_reduce(both)
        losses.append((float(both[0]), float(both[1])))
    alone = single_process_s(work) if settings.rank == 0 else 0.0
    dist.barrier()
    return {"ours_s": ours, "torch_s": theirs, "losses": losses, "alone_s": alone}


def make_torch_step(work: Any) -> Callable[[int], float]:
    """The same stages under torch's schedule of that name."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.pipelining import PipelineStage  # noqa: PLC0415
    from torch.distributed.pipelining import schedules as torch_schedules  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    from polyreme.models.build import StageLayers  # noqa: PLC0415
    from polyreme.models.llama import Head  # noqa: PLC0415

    class Part(torch.nn.Module):
        """Layers of a stage; the last one ends with logits, because torch computes the loss."""

        def __init__(self, layers: StageLayers) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            *first, last = self.layers.layers
            rotation = self.layers._rotation(value.shape[1])
            for layer in self.layers.layers if not isinstance(last, Head) else first:
                value = layer(value, rotation) if hasattr(layer, "mlp") else layer(value)
            return last.lm_head(last.norm(value)) if isinstance(last, Head) else value

    plan, (pipeline,) = work.plan, work.plan.pipelines
    model = next(iter(work.stages.values())).layers.model
    targets = 1.0

    def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        flat = logits.float().flatten(0, 1)
        return functional.cross_entropy(flat, labels.flatten(), reduction="sum", ignore_index=-100) / targets

    stages = [
        PipelineStage(
            Part(StageLayers(model, *pipeline.stages[index].layers, work.job.seed)),
            index,
            len(pipeline.stages),
            torch.device("cpu"),
            group=dist.group.WORLD,
        )
        for _, index in work.stages
    ]
    name = pipeline.schedule.name
    if name is ScheduleName.ONE_F_ONE_B:
        schedule: Any = torch_schedules.Schedule1F1B(
            stages[0], pipeline.microbatches, loss_fn=loss_of, scale_grads=False
        )
    else:
        kind = {
            ScheduleName.INTERLEAVED: torch_schedules.ScheduleInterleaved1F1B,
            ScheduleName.ZB_V: torch_schedules.ScheduleZBVZeroBubble,
        }[name]
        schedule = kind(stages, pipeline.microbatches, loss_fn=loss_of, scale_grads=False)

    def run(step: int) -> float:
        nonlocal targets
        batch = plan.batch
        targets = work.data.training.count_targets(work.job.seed, step, batch.sequences, batch.tokens_per_sequence)
        source, first, last = work.batch(step), ("a", 0), ("a", len(pipeline.stages) - 1)
        arguments = (
            [torch.cat([source.tokens(first, number) for number in range(pipeline.microbatches)])]
            if first in work.stages
            else []
        )
        target = (
            torch.cat([source.labels(last, number) for number in range(pipeline.microbatches)])
            if last in work.stages
            else None
        )
        losses: list[torch.Tensor] = []
        schedule.step(*arguments, target=target, losses=losses)
        for stage in stages:
            for parameter in stage.submod.parameters():
                parameter.grad = None
        return float(sum(loss.detach() * targets for loss in losses)) if target is not None else 0.0

    return run


def single_process_s(work: Any) -> float:
    """CPU seconds of the same computation in one process, median of three."""
    from polyreme.models.build import StageLayers  # noqa: PLC0415

    model, pipeline = next(iter(work.stages.values())).layers.model, work.plan.pipelines[0]
    layers = StageLayers(model, 0, num_layers(model), work.job.seed)
    shares = {("a", 0): next(iter(work.shares.values()))}
    times = []
    for step in range(WARM_UP_STEPS + 3):
        source = work.batch(step, shares)
        before = time.process_time()
        for number in range(pipeline.microbatches):
            layers(source.tokens(("a", 0), number), source.labels(("a", 0), number)).backward()
        times.append(time.process_time() - before)
        for parameter in layers.parameters():
            parameter.grad = None
    return statistics.median(times[WARM_UP_STEPS:])


def run_case(case: Case, schedule: ScheduleName, pairs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder) / "run", case, schedule)
        settings = WorkerSettings(
            run_dir=str(Path(folder) / "run"), data_base=".", num_cores=2, fault=str(pairs)
        ).to_message()
        result: dict[str, Any] = {}
        with Workers(worker_main, [settings] * NUM_WORKERS, "polyreme.training.preload") as workers:
            for heard in workers.messages():
                if isinstance(heard, Failure):
                    sys.exit((heard.message or {}).get("exception", f"rank {heard.rank} died"))
                result = heard[1]
    return result


COLUMNS = (
    "case",
    "schedule",
    "polyreme CPU s",
    "torch CPU s",
    "polyreme / torch, median and range of the pairs",
    "one process CPU s",
    "beyond it per stage-microbatch, ms: polyreme, torch",
    "loss difference",
)


def row(case: Case, schedule: ScheduleName, found: Mapping[str, Any]) -> list[str]:
    ours, theirs = statistics.median(found["ours_s"]), statistics.median(found["torch_s"])
    ratios = sorted(a / b for a, b in zip(found["ours_s"], found["torch_s"], strict=True))
    parts = case.microbatches * NUM_WORKERS * (1 if schedule is ScheduleName.ONE_F_ONE_B else 2)
    beyond = [1e3 * (spent - found["alone_s"]) / parts for spent in (ours, theirs)]
    return [
        case.name,
        schedule,
        f"{ours:.3f}",
        f"{theirs:.3f}",
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        f"{found['alone_s']:.3f}",
        f"{beyond[0]:.2f}, {beyond[1]:.2f}",
        f"{max(abs(a - b) / abs(b) for a, b in found['losses']):.1e}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="polyreme against torch.distributed.pipelining")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "interleaved", "zb-v"])
    args = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for case in CASES:
        for name in map(ScheduleName, args.schedules):
            print(f"| {' | '.join(row(case, name, run_case(case, name, args.pairs)))} |", flush=True)


if __name__ == "__main__":
    main()
