"""From a plan to a report: costs of its stages and boundaries, replay of its lists, and what they add up to."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from polyreme.catalog.fleet import Device
from polyreme.costs.comm import all_reduce_time_s
from polyreme.costs.memory import context_bytes, stage_parameters, state_bytes
from polyreme.costs.model import CostModel
from polyreme.costs.money import power_w, price_usd_per_s
from polyreme.errors import InputError
from polyreme.layout.boundaries import transfers
from polyreme.layout.instances import PipelineInstance, instances, stages_of
from polyreme.layout.owners import buckets
from polyreme.schedules.action import COMPUTE_OPS, Action, ActionLists
from polyreme.schedules.generate import most_held
from polyreme.schedules.lower import lower
from polyreme.simulator.replay import Crossing, StepCosts, Timed, replay
from polyreme.specs.device import LinkKind
from polyreme.specs.fields import PRECISION_BYTES, Recompute
from polyreme.specs.io import CREATED_BY, digest
from polyreme.specs.plan import Plan
from polyreme.specs.report import Report, Span, WorkerReport


@dataclass(frozen=True, slots=True)
class Simulation:
    """A replayed step: the lists, every action's time, and the report, still without its timeline."""

    lists: ActionLists
    timeline: dict[int, list[Timed]]
    report: Report

    def full_report(self) -> Report:
        """The report with every action on its timeline."""
        spans = tuple(
            Span(rank=rank, action=str(timed.action), start_s=timed.start_s, stop_s=timed.stop_s)
            for rank, timed_actions in sorted(self.timeline.items())
            for timed in timed_actions
        )
        return replace(self.report, timeline=spans)


def simulate(plan: Plan, costs: CostModel, memory_fraction: float = 1.0) -> Simulation:
    """Replay one step of `plan`. InputError if two neighbouring stages cannot reach each other."""
    devices = [costs.fleet.device(name) for name in plan.workers]
    reductions = buckets(plan, costs.model)
    lists = lower(plan, reductions)
    slowest = [_slowest_link(costs, [devices[rank] for rank in bucket.owners]) for bucket in reductions]
    size = PRECISION_BYTES[costs.precision]
    crossings = {
        (instance.name, index): _crossings(costs, devices, instance, index)
        for instance in instances(plan)
        for index in range(instance.num_stages - 1)
    }
    step_costs = StepCosts(
        stage={
            (instance.name, index): stage.time_s
            for instance in instances(plan)
            for index, stage in enumerate(instance.pipeline.stages)
        },
        crossings=crossings,
        reduce_s=[
            all_reduce_time_s(bucket.num_elements * size, len(bucket.owners), link)
            for bucket, link in zip(reductions, slowest, strict=True)
        ],
        reduce_owners=[bucket.owners for bucket in reductions],
        norm_s=_norm_s(crossings.values(), len(devices)),
        update_s={
            rank: sum(
                costs.update_s(device.kind, range(*instance.pipeline.stages[index].layers))
                for instance, index in stages_of(plan, rank)
            )
            for rank, device in enumerate(devices)
        },
    )
    timeline = replay(lists, step_costs)
    return Simulation(lists, timeline, _report(plan, costs, devices, step_costs, timeline, memory_fraction))


def _crossings(costs: CostModel, devices: list[Device], instance: PipelineInstance, stage: int) -> list[Crossing]:
    """The messages over a boundary; what a worker passes to itself takes no time."""
    found = []
    for transfer in transfers(instance, stage, costs.tokens_per_sequence):
        source, target = devices[transfer.source], devices[transfer.target]
        if source is target:
            found.append(Crossing(transfer.source, transfer.target, 0.0, 0.0))
            continue
        link = costs.link(source, target)
        if link is None:
            raise InputError.single("plan", f"{source.name} and {target.name} cannot reach each other both ways")
        size = costs.boundary_bytes(transfer.box.num_sequences, transfer.box.num_tokens)
        found.append(Crossing(transfer.source, transfer.target, size / link.bandwidth_bytes_per_s, link.latency_s))
    return found


def _norm_s(crossings: Iterable[Sequence[Crossing]], num_ranks: int) -> float:
    """A few bytes up a binary tree and down again, at the latency of the slowest boundary."""
    latency_s = max((crossing.latency_s for each in crossings for crossing in each), default=0.0)
    return 2 * math.ceil(math.log2(num_ranks)) * latency_s


def _slowest_link(costs: CostModel, owners: list[Device]) -> LinkKind:
    links = [costs.link(one, other) for one, other in pairwise(owners)]
    known = [link for link in links if link is not None]
    if len(known) < len(links):
        raise InputError.single(
            "plan", f"{', '.join(d.name for d in owners)} share weights but cannot reach each other"
        )
    return min(known, key=lambda link: link.bandwidth_bytes_per_s)


def _report(
    plan: Plan,
    costs: CostModel,
    devices: list[Device],
    step_costs: StepCosts,
    timeline: dict[int, list[Timed]],
    memory_fraction: float,
) -> Report:
    step_s = max(spans[-1].stop_s for spans in timeline.values())
    workers = tuple(
        _worker(plan, costs, rank, devices[rank], step_costs, timeline[rank], step_s, memory_fraction)
        for rank in range(len(devices))
    )
    kinds = [device.kind for device in devices]
    low, high = costs.interval(kinds)
    price, power = price_usd_per_s(kinds), power_w(kinds)
    tokens = plan.batch.sequences * plan.batch.tokens_per_sequence
    return Report(
        created_by=CREATED_BY,
        plan=digest(plan),
        step_time_s=(low * step_s, step_s, high * step_s),
        tokens_per_s=tokens / step_s if step_s else 0.0,
        bubble_fraction=sum(worker.bubble_fraction for worker in workers) / len(workers),
        cost_per_step_usd=None if price is None else price * step_s,
        energy_per_step_j=None if power is None else power * step_s,
        workers=workers,
        timeline=(),
    )


def _worker(
    plan: Plan,
    costs: CostModel,
    rank: int,
    device: Device,
    step_costs: StepCosts,
    spans: list[Timed],
    step_s: float,
    memory_fraction: float,
) -> WorkerReport:
    update_s = step_costs.update_s[rank]
    busy_s = sum(timed.stop_s - timed.start_s for timed in spans if timed.action.op in COMPUTE_OPS) + update_s
    held = stages_of(plan, rank)
    instance, index = held[0]
    return WorkerReport(
        rank=rank,
        worker=device.name,
        device=device.kind.name,
        layers=instance.pipeline.stages[index].layers,
        microbatch_time_s=step_costs.stage[instance.name, index],
        busy_s=busy_s,
        update_s=update_s,
        bubble_fraction=max(0.0, 1 - busy_s / step_s) if step_s else 0.0,
        memory_bytes=_memory(costs, device, rank, held, [timed.action for timed in spans]),
        memory_limit_bytes=device.kind.memory_bytes * memory_fraction,
    )


def _memory(
    costs: CostModel,
    device: Device,
    rank: int,
    held: Sequence[tuple[PipelineInstance, int]],
    actions: Sequence[Action],
) -> dict[str, float]:
    """Bytes by part at the moment when the rank holds most, over all stages that it has."""
    layers: list[int] = []
    kept: dict[int, float] = {}
    tp = part = 1
    again = 0.0
    for instance, index in held:
        stage = instance.pipeline.stages[index]
        own = range(*stage.layers)
        group, ranks = next((group, ranks) for group, ranks in instance.groups(index) if rank in ranks)
        tp, part = group.tp, ranks.index(rank) % group.tp
        kept[index] = costs.kept_bytes(device.kind, own, group.sequences, tp, stage.recompute)
        layers += own
        if stage.recompute is not Recompute.NONE:
            again = max(again, *(costs.kept_bytes(device.kind, [layer], group.sequences, tp) for layer in own))
    memory = state_bytes(stage_parameters(costs.model, layers, tp, part), costs.precision)
    computes = [(action.op, action.stage, action.microbatch) for action in actions if action.op in COMPUTE_OPS]
    return {**memory, "activations": most_held(computes, kept) + again, "context": context_bytes(device.kind)}
