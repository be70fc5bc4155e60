"""Puts one worker together from its run folder: driver, connections, stages, optimizer, data, executor."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from polyreme.adapters.torch_stage import TorchStage
from polyreme.catalog.fleet import build_fleet
from polyreme.drivers.base import MemoryLedger
from polyreme.drivers.choose import make_driver
from polyreme.layout.instances import PipelineInstance, stages_of
from polyreme.layout.owners import buckets
from polyreme.models.build import StageLayers
from polyreme.models.dtypes import DTYPES
from polyreme.models.optimizer import Updater
from polyreme.runtime.executor import Executor, Place
from polyreme.runtime.faults import parse_fault
from polyreme.runtime.gradsync import reduce_bucket
from polyreme.runtime.mesh import join, reduction_groups
from polyreme.runtime.wiring import share, wire
from polyreme.schedules.lower import lower
from polyreme.specs.io import load_cluster, load_job, load_model, load_plan
from polyreme.specs.job import AdamW, JobSpec
from polyreme.specs.plan import Plan
from polyreme.telemetry.recorder import EventRecorder
from polyreme.training.batches import StepBatch
from polyreme.training.data import JobData, open_data
from polyreme.training.settings import WorkerSettings

Parameters = Mapping[str, nn.Parameter]
MakeUpdate = Callable[[AdamW, Parameters, MemoryLedger], Callable[[], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """One worker, ready to run steps."""

    plan: Plan
    job: JobSpec
    data: JobData
    stages: Mapping[Place, TorchStage]
    shares: Mapping[Place, tuple[PipelineInstance, int, int]]
    parameters: Parameters
    memory: MemoryLedger
    recorder: EventRecorder
    executor: Executor

    def run_step(self, step: int) -> tuple[float, int]:
        """(sum of this worker's losses, tokens of the whole step that count). Gradients are of their quotient."""
        seed, batch = self.job.seed, self.plan.batch
        targets = self.data.training.count_targets(seed, step, batch.sequences, batch.tokens_per_sequence)
        for stage in self.stages.values():
            stage.loss_seed = 1.0 / targets
        source = StepBatch(self.data.training, seed, step, batch, self.shares)
        return self.executor.run_step(step, source), targets


def adamw(settings: AdamW, parameters: Parameters, memory: MemoryLedger) -> Callable[[], None]:
    """The update that training makes."""
    return Updater(settings, parameters, memory).step


def assemble(settings: WorkerSettings, listener: socket.socket | None, make_update: MakeUpdate = adamw) -> Assembly:
    """Join the run and build this worker's part. `make_update` gives what STEP does."""
    rank, run_dir = settings.rank, settings.folder
    plan, model = load_plan(run_dir / "plan.json"), load_model(run_dir / "model.json")
    job, fleet = load_job(run_dir / "config.json"), build_fleet(load_cluster(run_dir / "cluster.json"))
    device = fleet.device(plan.workers[rank])
    driver = make_driver(device, fleet, settings.num_cores)
    info = driver.probe()
    join(rank, len(plan.workers), settings.port, listener, info.backend)
    reductions = buckets(plan, model)
    groups = reduction_groups([bucket.owners for bucket in reductions])

    memory = MemoryLedger(f"{device.name} ({device.kind.name})", info.memory_bytes)
    dtype = DTYPES[job.precision]
    stages: dict[Place, TorchStage] = {}
    shares: dict[Place, tuple[PipelineInstance, int, int]] = {}
    for instance, index in stages_of(plan, rank):
        start, stop = instance.pipeline.stages[index].layers
        stages[instance.name, index] = TorchStage(StageLayers(model, start, stop, job.seed, dtype), memory)
        shares[instance.name, index] = (instance, *share(instance, index, rank))
    parameters = {name: parameter for stage in stages.values() for name, parameter in stage.state().items()}
    recorder = EventRecorder(run_dir / "events" / f"rank-{rank}.bin")
    executor = Executor(
        rank,
        lower(plan, reductions)[rank],
        wire(plan, model, fleet, rank, stages, dtype),
        driver,
        recorder,
        lambda number: reduce_bucket(reductions[number], parameters, groups[reductions[number].owners]),
        make_update(job.optimizer, parameters, memory),
        parse_fault(settings.fault) if settings.fault else None,
    )
    return Assembly(
        plan=plan,
        job=job,
        data=_data(settings, job, model.vocab_size),
        stages=stages,
        shares=shares,
        parameters=parameters,
        memory=memory,
        recorder=recorder,
        executor=executor,
    )


def _data(settings: WorkerSettings, job: JobSpec, vocab_size: int) -> JobData:
    data = open_data(job, Path(settings.data_base), vocab_size)
    if settings.data_inventory is not None:
        data.check_unchanged(settings.data_inventory)
    return data
