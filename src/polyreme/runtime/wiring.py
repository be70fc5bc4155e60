"""Connects one worker: channels for every boundary it takes part in, derived from the plan by `layout`."""

from collections import defaultdict
from collections.abc import Mapping

import torch

from polyreme.adapters.base import StageModule
from polyreme.catalog.fleet import Fleet
from polyreme.layout.boundaries import Transfer, transfers
from polyreme.layout.instances import PipelineInstance, instances
from polyreme.runtime.executor import Place, Wiring
from polyreme.runtime.transport import Channel, Receiver, Sender
from polyreme.schedules.action import Op
from polyreme.specs.device import LinkKind
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan


def wire(
    plan: Plan, model: ModelSpec, fleet: Fleet, rank: int, stages: Mapping[Place, StageModule], dtype: torch.dtype
) -> Wiring:
    """Senders and receivers of `rank`. Both ends number channels alike: by walking all boundaries in plan order."""
    wirer = _Wirer(plan, model, fleet, rank, dtype)
    running = instances(plan)
    for instance in running:
        for stage in range(instance.num_stages - 1):
            for transfer in transfers(instance, stage):
                wirer.connect(instance, stage, transfer)
    return Wiring(
        stages=stages,
        senders=wirer.senders,
        receivers=wirer.receivers,
        pipeline_numbers={instance.name: number for number, instance in enumerate(running)},
        first_places=frozenset((instance.name, 0) for instance in running),
        last_places=frozenset((instance.name, instance.num_stages - 1) for instance in running),
    )


def share(instance: PipelineInstance, stage: int, rank: int) -> tuple[int, int]:
    """Sequences [start, stop) of a microbatch that `rank` works on at `stage`."""
    start = 0
    for group, ranks in instance.groups(stage):
        if rank in ranks:
            return start, start + group.sequences
        start += group.sequences
    raise AssertionError(f"rank {rank} is not on stage {stage} of {instance.name}")


def emulated_link(fleet: Fleet, source: str, target: str) -> LinkKind | None:
    """The link to slow messages to, if either end is an emulated device."""
    ends = fleet.device(source), fleet.device(target)
    if all(end.kind.driver != "emulated" for end in ends):
        return None
    return fleet.link(*ends)


class _Wirer:
    """Collects the channel ends of one rank; `tag` numbers channels over the whole plan."""

    def __init__(self, plan: Plan, model: ModelSpec, fleet: Fleet, rank: int, dtype: torch.dtype) -> None:
        self.plan, self.model, self.fleet, self.rank, self.dtype = plan, model, fleet, rank, dtype
        self.tag = 0
        self.senders: dict[tuple[Op, Place], list[tuple[Sender, int, int]]] = defaultdict(list)
        self.receivers: dict[tuple[Op, Place], list[Receiver]] = defaultdict(list)

    def connect(self, instance: PipelineInstance, stage: int, transfer: Transfer) -> None:
        """Add the two channels of a transfer: activations to the next stage, gradients back."""
        source, target = transfer.source, transfer.target
        here, there = (instance.name, stage), (instance.name, stage + 1)
        shape = (transfer.num_sequences, self.plan.batch.tokens_per_sequence, self.model.hidden_size)
        for start, stop in ((source, target), (target, source)):
            forward = start == source
            link = emulated_link(self.fleet, self.plan.workers[start], self.plan.workers[stop])
            channel = Channel(self.tag, start, stop, shape, self.dtype, link)
            self.tag += 1
            if self.rank == start:
                first, _ = share(instance, stage if forward else stage + 1, start)
                key = (Op.SEND_ACTIVATION, here) if forward else (Op.SEND_GRADIENT, there)
                sender = Sender(channel, self.plan.digest)
                self.senders[key].append((sender, transfer.start - first, transfer.stop - first))
            elif self.rank == stop:
                key = (Op.RECV_ACTIVATION, there) if forward else (Op.RECV_GRADIENT, here)
                self.receivers[key].append(Receiver(channel, self.plan.digest))
