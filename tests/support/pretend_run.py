"""Makes run folders without running: a plan's action lists replayed on a pretended clock, written as a run writes them.

`python tests/support/pretend_run.py FOLDER` writes a few of them, to look at their reports.
"""

import dataclasses
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyreme.layout.instances import instances, stages_of
from polyreme.layout.owners import buckets
from polyreme.schedules.action import COMPUTE_OPS, RECV_OPS, Action, Op
from polyreme.schedules.lower import lower
from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node
from polyreme.specs.device import DeviceKind
from polyreme.specs.events import OP_NUMBERS, RECORD, RUNNING_NS
from polyreme.specs.fields import Precision, ScheduleName
from polyreme.specs.io import CREATED_BY, digest, save
from polyreme.specs.job import Batch, JobSpec
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Group, Inputs, Pipeline, Plan, Predicted, Schedule, Stage, StageTime
from polyreme.specs.report import Report, Span, WorkerReport

KINDS = ("big", "mid", "mid", "small")
SPEEDS = {"big": 4.0, "mid": 2.0, "small": 1.0}
LAYER_S = 0.004
SEND_S = 0.0006
STEP_S = 0.003
STARTED_UNIX_S = 1_790_000_000.0
PARTS = {"weights": 4, "gradients": 4, "optimizer": 8, "activations": 6}


TINY = ModelSpec(
    name="tiny-llama",
    family=ModelFamily.LLAMA,
    num_layers=14,
    hidden_size=192,
    num_heads=6,
    ffn_hidden_size=512,
    vocab_size=256,
)


@dataclass(frozen=True, kw_only=True)
class Pretence:
    """What to pretend. `failed_rank`: that worker raises in the last step; `killed`: the launcher died, no result."""

    model: ModelSpec = TINY
    layers: tuple[int, ...] = (6, 4, 4, 2)
    node: str = "node"
    pipelines: int = 1
    microbatches: int = 8
    steps: int = 30
    schedule: ScheduleName = ScheduleName.ONE_F_ONE_B
    slower: float = 1.06
    noise: float = 0.05
    failed_rank: int | None = None
    exception: str = "RuntimeError: out of range: index 300 of a table of 256 rows"
    killed: bool = False
    event_steps: int | None = None


DEFAULT = Pretence()
Times = dict[int, list[tuple[Action, float, float]]]


def make_plan(pretence: Pretence) -> Plan:
    """One stage per entry of `layers`, a copy of the pipeline per `pipelines`."""
    edges = [sum(pretence.layers[:index]) for index in range(len(pretence.layers) + 1)]
    stages = tuple(
        Stage(
            layers=(edges[index], edges[index + 1]),
            groups=(Group(ranks=(index,), sequences=4),),
            precision=Precision.FP32,
            time_s=_stage_time(pretence, index),
        )
        for index in range(len(pretence.layers))
    )
    width = len(stages)
    pipeline = Pipeline(
        name="a",
        microbatches=pretence.microbatches,
        microbatch_sequences=4,
        base_ranks=tuple(width * copy for copy in range(pretence.pipelines)),
        schedule=Schedule(name=pretence.schedule),
        stages=stages,
    )
    workers = tuple(
        f"{pretence.node}{rank // 4}/{KINDS[rank % width % len(KINDS)]}{rank % 4}"
        for rank in range(width * pretence.pipelines)
    )
    plan = Plan(
        created_by=CREATED_BY,
        inputs=Inputs(model="m" * 32, cluster="c" * 32, job="j" * 32),
        batch=Batch(sequences=4 * pretence.microbatches * pretence.pipelines, tokens_per_sequence=64),
        workers=workers,
        pipelines=(pipeline,),
        predicted=Predicted(step_time_s=(0.3, 0.4, 0.5)),
    )
    middle = max(stop for spans in replay(plan, pretence, 1.0, 0.0, 0).values() for _, _, stop in spans)
    plan = dataclasses.replace(plan, predicted=Predicted(step_time_s=(0.93 * middle, middle, 1.1 * middle)))
    return dataclasses.replace(plan, digest=digest(plan))


def replay(plan: Plan, pretence: Pretence, factor: float, noise: float, seed: int) -> Times:
    """(action, start, stop) of every rank for one step that starts at 0; receives last as long as they wait."""
    random_ = random.Random(seed)  # noqa: S311
    lists = lower(plan, buckets(plan, pretence.model))
    position, clock = dict.fromkeys(lists, 0), dict.fromkeys(lists, 0.0)
    arrival: dict[tuple[str, int, Op, int], float] = {}
    ready_to_reduce: dict[int, float] = {}
    times: Times = {rank: [] for rank in lists}
    while any(position[rank] < len(lists[rank]) for rank in lists):
        for rank, actions in lists.items():
            while position[rank] < len(actions):
                action, start = actions[position[rank]], clock[rank]
                stop = _stop_s(plan, action, start, arrival, factor * max(0.2, random_.gauss(1.0, noise)))
                if stop is None:
                    break
                times[rank].append((action, start, stop))
                position[rank] += 1
                clock[rank] = stop + 1e-5
    for rank, spans in times.items():
        for action, _, stop in spans:
            if action.op is Op.REDUCE:
                ready_to_reduce[action.stage] = max(stop, ready_to_reduce.get(action.stage, 0.0))
        times[rank] = _wait_for_reductions(spans, ready_to_reduce)
    return times


def _wait_for_reductions(spans: list[tuple[Action, float, float]], ready: Mapping[int, float]) -> list:
    shifted, delay = [], 0.0
    for action, start, stop in spans:
        moved = stop + delay
        if action.op is Op.REDUCE and action.stage in ready:
            moved = max(moved, ready[action.stage])
        shifted.append((action, start + delay, moved))
        delay = moved - stop
    return shifted


def _stop_s(plan: Plan, action: Action, start: float, arrival: dict, factor: float) -> float | None:
    if action.op is Op.STEP:
        return start + STEP_S * factor
    if action.op in (Op.REDUCE, Op.NORM):
        return start + 5 * SEND_S * factor
    time = next(i for i in instances(plan) if i.name == action.pipeline).pipeline.stages[action.stage].time_s
    if action.op in COMPUTE_OPS:
        seconds = {
            Op.FORWARD: time.f,
            Op.BACKWARD: time.backward_s,
            Op.INPUT_GRADIENT: time.i,
            Op.WEIGHT_GRADIENT: time.w,
        }
        return start + factor * seconds[action.op]
    if action.op in RECV_OPS:
        source = action.stage + (-1 if action.op is Op.RECV_ACTIVATION else 1)
        sent = Op.SEND_ACTIVATION if action.op is Op.RECV_ACTIVATION else Op.SEND_GRADIENT
        arrived = arrival.get((action.pipeline, source, sent, action.microbatch))
        return None if arrived is None else max(start + 2e-5, arrived)
    arrival[action.pipeline, action.stage, action.op, action.microbatch] = start + SEND_S * factor
    return start + SEND_S * factor / 4


def _stage_time(pretence: Pretence, index: int) -> StageTime:
    forward = pretence.layers[index] * LAYER_S / SPEEDS[KINDS[index % len(KINDS)]]
    return StageTime(f=forward, i=forward, w=forward)


def make_report(plan: Plan, pretence: Pretence) -> Report:
    """The prediction that goes with the plan."""
    times = replay(plan, pretence, 1.0, 0.0, 0)
    step_s = plan.predicted.step_time_s
    workers = []
    for rank, worker in enumerate(plan.workers):
        instance, index = stages_of(plan, rank)[0]
        stage = instance.pipeline.stages[index]
        busy = sum(stop - start for action, start, stop in times[rank] if action.op in COMPUTE_OPS)
        workers.append(
            WorkerReport(
                rank=rank,
                worker=worker,
                device=KINDS[index % len(KINDS)],
                layers=stage.layers,
                microbatch_time_s=stage.time_s,
                busy_s=busy,
                update_s=STEP_S,
                bubble_fraction=1 - (busy + STEP_S) / step_s[1],
                memory_bytes={part: _part_bytes(pretence, index, part) for part in PARTS},
                memory_limit_bytes=96e6 * SPEEDS[KINDS[index % len(KINDS)]],
            )
        )
    timeline = [
        Span(rank=rank, action=str(action), start_s=start, stop_s=stop)
        for rank, spans in times.items()
        for action, start, stop in spans
    ]
    report = Report(
        created_by=CREATED_BY,
        plan=plan.digest,
        step_time_s=step_s,
        tokens_per_s=plan.batch.sequences * plan.batch.tokens_per_sequence / step_s[1],
        bubble_fraction=sum(worker.bubble_fraction for worker in workers) / len(workers),
        workers=tuple(workers),
        timeline=tuple(timeline),
    )
    return dataclasses.replace(report, digest=digest(report))


def _part_bytes(pretence: Pretence, index: int, part: str) -> float:
    in_flight = len(pretence.layers) - index if part == "activations" else 1
    return 1.1e6 * pretence.layers[index] * PARTS[part] * in_flight


def pretend_run(folder: Path, pretence: Pretence = DEFAULT) -> Path:
    """Write the run folder `folder` and return it."""
    plan = make_plan(pretence)
    report = make_report(plan, pretence)
    save(folder / "model.json", pretence.model)
    save(folder / "cluster.json", _cluster(plan))
    save(folder / "config.json", _job(plan, pretence))
    save(folder / "plan.json", plan)
    save(folder / "prediction.json", report)
    _write_json(folder / "environment.json", _environment(pretence))
    for rank in range(len(plan.workers)):
        (folder / "logs").mkdir(exist_ok=True)
        (folder / f"logs/rank-{rank}.log").write_text(f"worker {rank} joined\n", encoding="utf-8")
    failed_action = _write_events(folder, plan, pretence)
    _write_metrics(folder, plan, pretence)
    if pretence.killed:
        return folder
    if pretence.failed_rank is None:
        _write_memory(folder, plan, report)
        result = {"status": "completed", "exit_code": 0, "steps": pretence.steps, "failure": None}
    else:
        result = _failure(folder, plan, pretence, failed_action)
    _write_json(folder / "result.json", result)
    return folder


def _write_events(folder: Path, plan: Plan, pretence: Pretence) -> str:
    """Write all events; returns the action at which the failing rank stopped."""
    contents = {rank: bytearray() for rank in range(len(plan.workers))}
    origin, failed = 1_000_000_000_000, ""
    steps = pretence.steps if pretence.event_steps is None else pretence.event_steps
    for step in range(steps):
        factor = pretence.slower * (1.5 if step == 0 else 1.0)
        times = replay(plan, pretence, factor, pretence.noise, step)
        ends = pretence.failed_rank is not None and step == steps - 1
        cut = None
        if ends:
            cut, failed = times[pretence.failed_rank][len(times[pretence.failed_rank]) // 2][1] + 1e-6, ""
        for rank, spans in times.items():
            for action, start, stop in spans:
                if cut is not None and start > cut:
                    break
                running = cut is not None and stop > cut
                if running and rank == pretence.failed_rank:
                    failed = str(action)
                contents[rank] += _record(plan, action, step, origin + int(start * 1e9), stop - start, running=running)
        origin += int(1e9 * (0.002 + max(stop for spans in times.values() for _, _, stop in spans)))
    (folder / "events").mkdir()
    for rank, content in contents.items():
        unused = b"" if pretence.failed_rank is None else bytes(2**12)
        (folder / f"events/rank-{rank}.bin").write_bytes(content + unused)
    return failed


def _record(plan: Plan, action: Action, step: int, start_ns: int, duration_s: float, *, running: bool) -> bytes:
    names = [instance.name for instance in instances(plan)]
    pipeline = names.index(action.pipeline) if action.pipeline else 0
    kib = 96 if action.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT, *RECV_OPS) else 0
    duration_ns = RUNNING_NS if running else int(duration_s * 1e9)
    return RECORD.pack(
        start_ns, duration_ns, step, action.microbatch, kib, action.stage, OP_NUMBERS[action.op.value], pipeline
    )


def _write_metrics(folder: Path, plan: Plan, pretence: Pretence) -> None:
    random_ = random.Random(7)  # noqa: S311
    tokens = plan.batch.sequences * plan.batch.tokens_per_sequence
    middle = plan.predicted.step_time_s[1] * pretence.slower
    lines, now = [], STARTED_UNIX_S
    steps = pretence.steps - (0 if pretence.failed_rank is None else 1)
    for step in range(steps):
        time_s = middle * (1.5 if step == 0 else random_.gauss(1.0, pretence.noise / 2))
        now += time_s
        loss = 2.1 + 3.45 / (1 + 0.05 * step) + random_.gauss(0, 0.03)
        lines.append(
            json.dumps({"step": step, "loss": loss, "step_time_s": time_s, "tokens": tokens, "time_unix_s": now})
        )
    text = "\n".join(lines) + "\n"
    if pretence.killed:
        text += '{"step": 99, "lo'
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def _write_memory(folder: Path, plan: Plan, report: Report) -> None:
    workers = [
        {
            "rank": worker.rank,
            "peak_bytes": {
                part: int(size * (1.12 if part == "activations" else 1.0)) for part, size in worker.memory_bytes.items()
            },
            "limit_bytes": worker.memory_limit_bytes,
        }
        for worker in report.workers
    ]
    _write_json(folder / "memory.json", {"workers": workers})


def _failure(folder: Path, plan: Plan, pretence: Pretence, action: str) -> dict[str, object]:
    rank = pretence.failed_rank
    assert rank is not None
    log = f"logs/rank-{rank}.log"
    with (folder / log).open("a", encoding="utf-8") as file:
        file.write(
            'Traceback (most recent call last):\n  File "executor.py", line 81, in run\n    self._forward(action)\n'
        )
        file.write(f"\x1b[31m{pretence.exception}\x1b[0m\n")
    instance, stage = stages_of(plan, rank)[0]
    failure = {
        "rank": rank,
        "worker": plan.workers[rank],
        "stage": f"{instance.name}.{stage}",
        "device": KINDS[stage % len(KINDS)],
        "action": action,
        "step": pretence.steps - 1,
        "exception": pretence.exception,
        "log": log,
    }
    return {"status": "failed", "exit_code": 4, "steps": pretence.steps - 1, "failure": failure}


def _cluster(plan: Plan) -> ClusterSpec:
    kinds = tuple(
        DeviceKind(name=name, driver="emulated", memory_bytes=96e6 * s, speed=s) for name, s in SPEEDS.items()
    )
    return ClusterSpec(
        name="pretended", device_kinds=kinds, nodes=(Node(name="node0", devices=(DeviceEntry(kind="big"),)),)
    )


def _job(plan: Plan, pretence: Pretence) -> JobSpec:
    return JobSpec(
        name="pretended", model="model.json", cluster="cluster.json", batch=plan.batch, steps=pretence.steps, seed=17
    )


def _environment(pretence: Pretence) -> dict[str, object]:
    return {
        "polyreme": "0.1.0",
        "python": "3.11.2",
        "torch": "2.13.0+cpu",
        "platform": "Linux-6.1-x86_64",
        "cpu": "Pretended CPU",
        "cores": 2,
        "seed": 17,
        "data_digest": "0123456789abcdef0123456789abcdef",
        "started_unix_s": STARTED_UNIX_S,
        "command": ["polyreme", "train", "my job.yaml"],
    }


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")


def main(folder: Path) -> None:
    """Write the run folders that are worth looking at."""
    many = Pretence(layers=(5, 4, 4, 3) * 2, model=dataclasses.replace(TINY, num_layers=30), pipelines=2)
    shown = {
        "completed-4": Pretence(),
        "failed-4": Pretence(failed_rank=2, steps=12),
        "killed-4": Pretence(killed=True, steps=9),
        "gpipe-16": dataclasses.replace(many, schedule=ScheduleName.GPIPE, microbatches=16, steps=12),
        "one-step": Pretence(steps=1),
        "long-4": Pretence(steps=20_000, event_steps=50),
    }
    for name, pretence in shown.items():
        pretend_run(folder / name, pretence)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
