"""Connects one worker: channels for every boundary it takes part in, derived from the plan by `layout`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from polyreme.adapters.base import StageModule
from polyreme.catalog.fleet import Fleet
from polyreme.drivers.choose import CAPABILITIES
from polyreme.layout.boundaries import Box, Transfer, boxes, transfers
from polyreme.layout.instances import PipelineInstance, instances
from polyreme.runtime.executor import Part, Place, Wiring
from polyreme.runtime.mesh import GroupMaker
from polyreme.runtime.transports.base import Channel, Receiver, Sender
from polyreme.runtime.transports.c10d import C10dReceiver, C10dSender
from polyreme.runtime.transports.choose import choose_transport
from polyreme.runtime.transports.local import LocalChannel
from polyreme.runtime.transports.messages import Kind
from polyreme.runtime.transports.shm import MOST_AHEAD, SharedReceiver, SharedSender, address_of
from polyreme.runtime.transports.staged import StagedReceiver, StagedSender
from polyreme.schedules.action import RECEIVES_POSTED, Op
from polyreme.specs.device import LinkKind
from polyreme.specs.fields import Transport
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a run's wiring depends on beside the plan. `run_token` sets its shared memory apart from other runs'."""

    model: ModelSpec
    fleet: Fleet
    dtype: torch.dtype
    torch_device: str
    run_token: str
    in_lab: bool
    groups: GroupMaker


def wire(plan: Plan, site: Site, rank: int, stages: Mapping[Place, StageModule]) -> Wiring:
    """Senders and receivers of `rank`, connected. Both ends number channels alike: by walking all boundaries in plan
    order. All ranks must call this at the same time."""
    wirer = _Wirer(plan, site, rank)
    running = instances(plan)
    num_tokens = plan.batch.tokens_per_sequence
    for instance in running:
        for stage in range(instance.num_stages - 1):
            for transfer in transfers(instance, stage, num_tokens):
                wirer.connect(instance, stage, transfer)
    wirer.meet()
    held = {(one.name, stage): boxes(one, stage, num_tokens) for one in running for stage in range(one.num_stages)}
    last = frozenset((instance.name, instance.num_stages - 1) for instance in running)
    return Wiring(
        stages=stages,
        senders=wirer.senders,
        receivers=wirer.receivers,
        shapes={place: _shape(held[place][rank], site.model) for place in stages},
        dtype=site.dtype,
        torch_device=site.torch_device,
        pipeline_numbers={instance.name: number for number, instance in enumerate(running)},
        first_places=frozenset((instance.name, 0) for instance in running),
        last_places=last,
        counts_loss=frozenset(place for place in stages if place in last and held[place][rank].first_token == 0),
    )


def emulated_link(fleet: Fleet, source: str, target: str, *, in_lab: bool) -> LinkKind | None:
    """The link to slow messages to, if either end is an emulated device; between nodes of a lab the kernel does it."""
    ends = fleet.device(source), fleet.device(target)
    if all(end.kind.driver != "emulated" for end in ends) or (in_lab and ends[0].node != ends[1].node):
        return None
    return fleet.link(*ends)


def _shape(box: Box, model: ModelSpec) -> torch.Size:
    return torch.Size((box.num_sequences, box.num_tokens, model.hidden_size))


def _part(box: Box, held: Box) -> Part:
    """Where `box` lies in what a rank holds."""
    return (
        slice(box.start - held.start, box.stop - held.start),
        slice(box.first_token - held.first_token, box.last_token - held.first_token),
    )


class _Wirer:
    """Collects the channel ends of one rank; tags number channels over the whole plan."""

    def __init__(self, plan: Plan, site: Site, rank: int) -> None:
        self.plan, self.site, self.rank = plan, site, rank
        self.settings = {(edge.source, edge.target): edge.transport for edge in plan.edges}
        self.tag = 0
        self.senders: dict[tuple[Op, Place], list[tuple[Sender, Part]]] = defaultdict(list)
        self.receivers: dict[tuple[Op, Place], list[tuple[Receiver, Part]]] = defaultdict(list)
        self.listening: list[SharedReceiver] = []
        self.calling: list[tuple[list[tuple[Sender, Part]], Channel, Part]] = []
        """Shared memory to connect to once everybody listens: where its sender goes, and what it carries."""

    def connect(self, instance: PipelineInstance, stage: int, transfer: Transfer) -> None:
        """Add the two channels of a transfer: activations to the next stage, gradients back."""
        here, there = (instance.name, stage), (instance.name, stage + 1)
        forward, back = (transfer.source, transfer.target), (transfer.target, transfer.source)
        num_tokens, box = self.plan.batch.tokens_per_sequence, transfer.box
        parts = {
            place: _part(box, boxes(instance, place[1], num_tokens)[rank])
            for place, rank in zip((here, there), forward, strict=True)
        }
        setting = self.settings.get(((instance.pipeline.name, stage), (instance.pipeline.name, stage + 1)))
        inside = set(instance.ranks(stage)) == set(instance.ranks(stage + 1))
        ahead = instance.pipeline.microbatches if inside else RECEIVES_POSTED
        for (start, stop), ops, places in (
            (forward, (Op.SEND_ACTIVATION, Op.RECV_ACTIVATION), (here, there)),
            (back, (Op.SEND_GRADIENT, Op.RECV_GRADIENT), (there, here)),
        ):
            self.tag += 1
            outgoing = self.senders[ops[0], places[0]] if self.rank == start else None
            incoming = self.receivers[ops[1], places[1]] if self.rank == stop else None
            if start == stop:
                if outgoing is not None and incoming is not None:
                    local = LocalChannel()
                    outgoing.append((local, parts[places[0]]))
                    incoming.append((local, parts[places[1]]))
                continue
            workers = self.plan.workers
            what = "activations" if start == forward[0] else "gradients"
            boundary = f"boundary {instance.name}.{stage}|{instance.name}.{stage + 1} {what}"
            channel = Channel(
                kind=Kind(self.plan.digest, self.tag, self.site.dtype, tuple(_shape(box, self.site.model))),
                source=start,
                target=stop,
                name=f"rank {start} ({workers[start]}) -> rank {stop} ({workers[stop]}), {boundary}",
                ahead=ahead,
                link=emulated_link(self.site.fleet, workers[start], workers[stop], in_lab=self.site.in_lab),
            )
            self._open(channel, setting, (outgoing, parts[places[0]]), (incoming, parts[places[1]]))

    def _open(
        self,
        channel: Channel,
        setting: Transport | None,
        sending: tuple[list[tuple[Sender, Part]] | None, Part],
        receiving: tuple[list[tuple[Receiver, Part]] | None, Part],
    ) -> None:
        """Open this rank's end of a channel, if it has one; groups are made by all ranks alike."""
        site, workers = self.site, self.plan.workers
        source, target = site.fleet.device(workers[channel.source]), site.fleet.device(workers[channel.target])
        transport = choose_transport(source, target, setting)
        if transport is Transport.SHM and channel.ahead > MOST_AHEAD:
            transport = Transport.C10D
        (outgoing, out_part), (incoming, in_part) = sending, receiving
        if transport is Transport.SHM:
            if outgoing is not None:
                self.calling.append((outgoing, channel, out_part))
            elif incoming is not None:
                receiver = SharedReceiver(channel, address_of(site.run_token, channel.kind.tag))
                self.listening.append(receiver)
                incoming.append((receiver, in_part))
            return
        if transport is Transport.STAGED:
            group: dist.ProcessGroup | None = site.groups.host()
        elif CAPABILITIES[source.kind.driver].backend == "gloo":
            group = None
        else:
            group = site.groups.channel(channel.source, channel.target)
        if outgoing is not None:
            outgoing.append((_sender(transport, channel, group), out_part))
        elif incoming is not None:
            incoming.append((_receiver(transport, channel, group, site.torch_device), in_part))

    def meet(self) -> None:
        """Connect the shared memory: everybody listens before anybody calls, and accepts before anybody waits."""
        dist.barrier()
        senders = []
        for outgoing, channel, part in self.calling:
            senders.append(SharedSender(channel, address_of(self.site.run_token, channel.kind.tag)))
            outgoing.append((senders[-1], part))
        for receiver in self.listening:
            receiver.accept()
        for sender in senders:
            sender.take_memory()


def _sender(transport: Transport, channel: Channel, group: dist.ProcessGroup | None) -> Sender:
    return C10dSender(channel, group) if transport is Transport.C10D else StagedSender(channel, group)


def _receiver(transport: Transport, channel: Channel, group: dist.ProcessGroup | None, device: str) -> Receiver:
    if transport is Transport.C10D:
        return C10dReceiver(channel, group, device)
    return StagedReceiver(channel, group, device)
