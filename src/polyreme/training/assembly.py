"""Puts one worker together from its run folder: driver, connections, stages, optimizer, data, executor."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from polyreme.adapters.torch_stage import TorchStage
from polyreme.catalog.fleet import build_fleet
from polyreme.drivers.base import MemoryLedger
from polyreme.drivers.choose import CAPABILITIES, default_backend, make_driver
from polyreme.drivers.numa import bind_to_node
from polyreme.layout.instances import stages_of
from polyreme.layout.layers import parameters as layout_parameters
from polyreme.layout.owners import Atom, atoms, buckets, holders, shards
from polyreme.models.build import StageLayers
from polyreme.models.dtypes import DTYPES
from polyreme.models.foreign import ForeignLayers, load_function
from polyreme.models.layer_range import LayerRange
from polyreme.models.optimizer import Updater
from polyreme.models.tensor_parallel import TensorGroup
from polyreme.runtime.executor import Executor, Place
from polyreme.runtime.faults import parse_fault
from polyreme.runtime.gradsync import GradientSync, Held
from polyreme.runtime.mesh import GroupMaker, join, reductions, tensor_groups
from polyreme.runtime.wiring import Site, wire
from polyreme.schedules.action import Action, Op
from polyreme.schedules.lower import lower
from polyreme.specs.fields import Precision, Recompute
from polyreme.specs.io import load_cluster, load_job, load_model, load_plan
from polyreme.specs.job import JobSpec
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan
from polyreme.telemetry.recorder import EventRecorder
from polyreme.training.batches import Shares, StepBatch, shares_of
from polyreme.training.data import JobData, open_data
from polyreme.training.load import initial_fill
from polyreme.training.settings import WorkerSettings
from polyreme.training.update import FIRST_FP16_SCALE, LossScale, StepUpdate

Parameters = Mapping[str, nn.Parameter]
MakeLayers = Callable[[int, int, TensorGroup, Recompute, Parameters], LayerRange]
MakeUpdate = Callable[[JobSpec, GradientSync, Parameters, MemoryLedger, LossScale], StepUpdate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """One worker, ready to run steps. `holds_head`: whether it is one that reports losses."""

    plan: Plan
    model: ModelSpec
    job: JobSpec
    data: JobData
    stages: Mapping[Place, TorchStage]
    shares: Shares
    parameters: Parameters
    memory: MemoryLedger
    recorder: EventRecorder
    executor: Executor
    update: StepUpdate
    holds_head: bool

    def run_step(self, step: int) -> tuple[float, int]:
        """(sum of this worker's losses, tokens of the whole step that count). Gradients are of their quotient."""
        seed, batch = self.job.seed, self.plan.batch
        targets = self.data.training.count_targets(seed, step, batch.sequences, batch.tokens_per_sequence)
        self.update.step_number = step
        for stage in self.stages.values():
            stage.loss_seed = self.update.scale.value / targets
        return self.executor.run_step(step, self.batch(step)), targets

    def evaluates_after(self, step: int) -> bool:
        """Whether the job evaluates after a step: every so many, and after the last."""
        wanted = self.job.evaluation
        return wanted is not None and ((step + 1) % wanted.every_steps == 0 or step == self.job.steps - 1)

    def run_evaluation(self, step: int) -> tuple[float, int]:
        """(sum of this worker's losses, tokens that count) over the evaluation data after a step, a batch at a time."""
        evaluation, batch = self.data.evaluation, self.plan.batch
        assert evaluation is not None
        assert self.job.evaluation is not None
        loss_sum, targets = 0.0, 0
        for number in range(-(-self.job.evaluation.sequences // batch.sequences)):
            targets += evaluation.count_targets(self.job.seed, number, batch.sequences, batch.tokens_per_sequence)
            source = StepBatch(evaluation, self.job.seed, number, batch, self.shares)
            loss_sum += self.executor.run_evaluation(step, source)
        return loss_sum, targets

    def batch(self, step: int, shares: Shares | None = None) -> StepBatch:
        """The data of a step; this worker's part of it unless other shares are given."""
        return StepBatch(self.data.training, self.job.seed, step, self.plan.batch, shares or self.shares)


def step_update(
    job: JobSpec, sync: GradientSync, parameters: Parameters, memory: MemoryLedger, scale: LossScale
) -> StepUpdate:
    """The update that training makes."""
    return StepUpdate(sync, Updater(job.optimizer, parameters, memory), job.optimizer, job.steps, scale)


def assemble(
    settings: WorkerSettings, listener: socket.socket | None, make_update: MakeUpdate = step_update
) -> Assembly:
    """Join the run and build this worker's part. `make_update` gives what follows the microbatches."""
    rank, run_dir = settings.rank, settings.folder
    plan, model = load_plan(run_dir / "plan.json"), load_model(run_dir / "model.json")
    job, fleet = load_job(run_dir / "config.json"), build_fleet(load_cluster(run_dir / "cluster.json"))
    device = fleet.device(plan.workers[rank])
    driver = make_driver(device, fleet, settings.num_cores, in_lab=settings.seat.in_lab)
    info = driver.probe()
    bind_to_node(info.numa_node)
    drivers = [fleet.device(worker).kind.driver for worker in plan.workers]
    join(rank, len(drivers), settings.port, listener, default_backend(drivers), settings.seat, plan.digest)
    groups = GroupMaker()
    shared = buckets(plan, model)
    summing = reductions(shared, rank, [CAPABILITIES[name].backend for name in drivers], groups)

    memory = MemoryLedger(f"{device.name} ({device.kind.name})", info.memory_bytes)
    actions = lower(plan, shared)[rank]
    make_layers = _layer_maker(settings, model, job, info.torch_device)
    stages = _build_stages(plan, rank, actions, tensor_groups(plan, rank, groups), memory, make_layers)
    parameters = {name: parameter for stage in stages.values() for name, parameter in stage.state().items()}
    sync = GradientSync(shared, summing, *_owned(plan, model, rank), parameters)
    scale = LossScale(FIRST_FP16_SCALE, dynamic=True) if job.precision is Precision.FP16 else LossScale()
    recorder = EventRecorder(run_dir / "events" / f"rank-{rank}.bin")
    site = Site(
        model=model,
        fleet=fleet,
        dtype=DTYPES[job.precision],
        torch_device=info.torch_device,
        run_token=str(settings.port),
        in_lab=settings.seat.in_lab,
        groups=groups,
    )
    wiring = wire(plan, site, rank, stages)
    update = make_update(job, sync, parameters, memory, scale)
    fault = parse_fault(settings.fault) if settings.fault else None
    executor = Executor(rank, actions, wiring, driver, recorder, update, fault)
    return Assembly(
        plan=plan,
        model=model,
        job=job,
        data=_data(settings, job, model.vocab_size),
        stages=stages,
        shares=shares_of(plan, rank),
        parameters=parameters,
        memory=memory,
        recorder=recorder,
        executor=executor,
        update=update,
        holds_head=bool(wiring.counts_loss),
    )


def _layer_maker(settings: WorkerSettings, model: ModelSpec, job: JobSpec, torch_device: str) -> MakeLayers:
    """What builds a range of the model's layers for this worker."""
    dtype, fill = DTYPES[job.precision], initial_fill(job, Path(settings.data_base), model)

    def make(
        start: int, stop: int, ranks: TensorGroup, recompute: Recompute, shared: Mapping[str, nn.Parameter]
    ) -> LayerRange:
        if model.code is None:
            return StageLayers(
                model, start, stop, job.seed, dtype, ranks, recompute, shared, fill=fill, torch_device=torch_device
            )
        assert settings.code_base is not None, "code was not allowed"
        made = load_function(model.code, Path(settings.code_base))
        layers = ForeignLayers(
            model, start, stop, job.seed, made, dtype, recompute, shared=shared, torch_device=torch_device
        )
        if fill is not None:
            for parameter in (one for layer in range(start, stop) for one in layout_parameters(model, layer)):
                fill(layers.named[parameter.name], parameter, shards(parameter, 1, 0))
        return layers

    return make


def _owned(plan: Plan, model: ModelSpec, rank: int) -> tuple[Held, list[Atom]]:
    """What this rank holds of every parameter, and the atoms whose squares it adds to the norm."""
    held = {name: of_ranks[rank] for name, of_ranks in holders(plan, model).items() if rank in of_ranks}
    return held, [atom for atom in atoms(plan, model) if atom.owners[0] == rank]


def _build_stages(
    plan: Plan,
    rank: int,
    actions: Sequence[Action],
    tensor_ranks: Mapping[Place, TensorGroup],
    memory: MemoryLedger,
    make_layers: MakeLayers,
) -> dict[Place, TorchStage]:
    """This rank's stages; a parameter that two of them have is one tensor."""
    stages: dict[Place, TorchStage] = {}
    named: dict[str, nn.Parameter] = {}
    for instance, index in stages_of(plan, rank):
        stage, place = instance.pipeline.stages[index], (instance.name, index)
        start, stop = stage.layers
        layers = make_layers(start, stop, tensor_ranks[place], stage.recompute, named)
        named.update(layers.named)
        splits = any((one.op, one.pipeline, one.stage) == (Op.INPUT_GRADIENT, *place) for one in actions)
        stages[place] = TorchStage(layers, memory, splits=splits)
    return stages


def _data(settings: WorkerSettings, job: JobSpec, vocab_size: int) -> JobData:
    data = open_data(job, Path(settings.data_base), vocab_size)
    if settings.data_inventory is not None:
        data.check_unchanged(settings.data_inventory)
    return data
