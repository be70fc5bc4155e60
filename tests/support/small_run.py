"""A tiny model on emulated devices, plans of any cut over it, and short text whose windows run over document ends."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Precision, Recompute, ScheduleName
from polyreme.specs.job import AdamW, Batch, Data, JobSpec, TextData
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Group, Pipeline, Plan, Predicted, Schedule, Stage, StageTime
from polyreme.specs.plan import Inputs as PlanInputs
from polyreme.training.runnable import Inputs

NUM_BLOCKS = 4
NUM_LAYERS = NUM_BLOCKS + 2
NUM_TOKENS = 24
LEAST_WORKERS = 5


def tiny_model(*, tied: bool = False) -> ModelSpec:
    return ModelSpec(
        name="tiny",
        family=ModelFamily.LLAMA,
        num_layers=NUM_BLOCKS,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        ffn_hidden_size=48,
        vocab_size=256,
        tied_embedding=tied,
    )


def tiny_gpt(*, tied: bool = False) -> ModelSpec:
    return ModelSpec(
        name="tiny-gpt",
        family=ModelFamily.GPT,
        num_layers=NUM_BLOCKS,
        hidden_size=32,
        num_heads=4,
        ffn_hidden_size=56,
        vocab_size=257,
        max_sequence_length=40,
        tied_embedding=tied,
    )


def cluster(memory_bytes: float = 1e9, num_workers: int = LEAST_WORKERS) -> ClusterSpec:
    """Two fast devices, the others slow; more devices are slower ones, since all share the cores."""
    kinds = (
        DeviceKind(name="fast", driver="emulated", memory_bytes=memory_bytes, speed=2.0),
        DeviceKind(name="slow", driver="emulated", memory_bytes=memory_bytes, speed=1.0),
    )
    entries = (DeviceEntry(kind="fast", name="w", count=2), DeviceEntry(kind="slow", name="w", count=num_workers - 2))
    return ClusterSpec(
        name="tiny",
        nodes=(Node(name="n", devices=entries, links=NodeLinks(intra="wire")),),
        device_kinds=kinds,
        link_kinds=(LinkKind(name="wire", bandwidth_bytes_per_s=1e9, latency_s=50e-6),),
    )


def write_text(folder: Path) -> TextData:
    """Documents of 5 to 60 bytes: most windows of NUM_TOKENS end early, so microbatches count unlike numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(12):
        text = "".join(chr(97 + (number * 7 + position * position) % 26) for position in range(5 + 5 * number))
        (folder / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    return TextData(paths=(str(folder.resolve()),))


def pipeline(
    name: str,
    cuts: Sequence[int],
    microbatches: int,
    schedule: ScheduleName,
    *,
    base: int = 0,
    microbatch_sequences: int = 2,
    precision: Precision = Precision.FP32,
    groups: Sequence[Sequence[tuple[int, int]]] | None = None,
    places: Sequence[int] | None = None,
    num_layers: int = NUM_LAYERS,
    times: Sequence[StageTime] | None = None,
    recompute: Recompute = Recompute.NONE,
) -> Pipeline:
    """Stages between `cuts`; `groups` gives (sequences, tp) of each of a stage's groups, one rank by default.

    `places` gives the first stage whose ranks each stage has, itself by default.
    """
    edges = [0, *cuts, num_layers]
    groups = groups or [[(microbatch_sequences, 1)]] * (len(edges) - 1)
    stages: list[Stage] = []
    rank = 0
    for number, (start, stop) in enumerate(pairwise(edges)):
        if places is not None and places[number] != number:
            made = stages[places[number]].groups
        else:
            made = ()
            for sequences, tp in groups[number]:
                made += (Group(ranks=tuple(range(rank, rank + tp)), tp=tp, sequences=sequences),)
                rank += tp
        time_s = times[number] if times else StageTime(f=1.0, i=1.0, w=1.0)
        stages.append(Stage(layers=(start, stop), groups=made, precision=precision, time_s=time_s, recompute=recompute))
    return Pipeline(
        name=name,
        microbatches=microbatches,
        microbatch_sequences=microbatch_sequences,
        base_ranks=(base,),
        schedule=Schedule(name=schedule),
        stages=tuple(stages),
    )


def inputs(
    pipelines: Sequence[Pipeline],
    data: Data,
    *,
    precision: Precision = Precision.FP32,
    steps: int = 1,
    tied: bool = False,
    model: ModelSpec | None = None,
    learning_rate: float = 1e-3,
    memory_bytes: float = 1e9,
) -> Inputs:
    """A run of `pipelines`; `model` is a tiny llama by default."""
    model = model or tiny_model(tied=tied)
    sequences = sum(p.microbatches * p.microbatch_sequences for p in pipelines)
    ranks = {base + r for p in pipelines for base in p.base_ranks for s in p.stages for g in s.groups for r in g.ranks}
    batch = Batch(sequences=sequences, tokens_per_sequence=NUM_TOKENS)
    job = JobSpec(
        name="tiny",
        model="model.json",
        cluster="cluster.json",
        batch=batch,
        precision=precision,
        steps=steps,
        data=data,
        optimizer=AdamW(learning_rate=learning_rate),
    )
    plan = Plan(
        created_by="test",
        inputs=PlanInputs(model="m", cluster="c", job="j"),
        batch=batch,
        workers=tuple(f"n/w{rank}" for rank in sorted(ranks)),
        pipelines=tuple(pipelines),
        predicted=Predicted(step_time_s=(1.0, 1.0, 1.0)),
    )
    return Inputs(
        plan=plan, model=model, cluster=cluster(memory_bytes, max(LEAST_WORKERS, len(ranks))), job=job, base=Path()
    )


def alive(run_dir: Path) -> list[int]:
    """Processes of a run that still exist, apart from those that wait to be reaped."""
    found = []
    for process_id in json.loads((run_dir / "processes.json").read_text(encoding="utf-8"))["workers"]:
        try:
            state = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(process_id)
    return found
