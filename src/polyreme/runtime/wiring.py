"""Connects one worker: channels for every boundary it takes part in, derived from the plan by `layout`."""

from collections import defaultdict
from collections.abc import Mapping

import torch

from polyreme.adapters.base import StageModule
from polyreme.catalog.fleet import Fleet
from polyreme.layout.boundaries import Box, Transfer, boxes, transfers
from polyreme.layout.instances import PipelineInstance, instances
from polyreme.runtime.executor import Part, Place, Wiring
from polyreme.runtime.local import LocalChannel
from polyreme.runtime.transport import Channel, ChannelReceiver, ChannelSender, Receiver, Sender
from polyreme.schedules.action import Op
from polyreme.specs.device import LinkKind
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan


def wire(
    plan: Plan,
    model: ModelSpec,
    fleet: Fleet,
    rank: int,
    stages: Mapping[Place, StageModule],
    dtype: torch.dtype,
    *,
    in_lab: bool = False,
) -> Wiring:
    """Senders and receivers of `rank`. Both ends number channels alike: by walking all boundaries in plan order."""
    wirer = _Wirer(plan, model, fleet, rank, dtype, in_lab=in_lab)
    running = instances(plan)
    num_tokens = plan.batch.tokens_per_sequence
    for instance in running:
        for stage in range(instance.num_stages - 1):
            for transfer in transfers(instance, stage, num_tokens):
                wirer.connect(instance, stage, transfer)
    held = {(one.name, stage): boxes(one, stage, num_tokens) for one in running for stage in range(one.num_stages)}
    last = frozenset((instance.name, instance.num_stages - 1) for instance in running)
    return Wiring(
        stages=stages,
        senders=wirer.senders,
        receivers=wirer.receivers,
        shapes={place: _shape(held[place][rank], model) for place in stages},
        dtype=dtype,
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
    """Collects the channel ends of one rank; `tag` numbers channels over the whole plan."""

    def __init__(
        self, plan: Plan, model: ModelSpec, fleet: Fleet, rank: int, dtype: torch.dtype, *, in_lab: bool
    ) -> None:
        self.plan, self.model, self.fleet, self.rank, self.dtype, self.in_lab = plan, model, fleet, rank, dtype, in_lab
        self.tag = 0
        self.senders: dict[tuple[Op, Place], list[tuple[Sender, Part]]] = defaultdict(list)
        self.receivers: dict[tuple[Op, Place], list[tuple[Receiver, Part]]] = defaultdict(list)

    def connect(self, instance: PipelineInstance, stage: int, transfer: Transfer) -> None:
        """Add the two channels of a transfer: activations to the next stage, gradients back."""
        here, there = (instance.name, stage), (instance.name, stage + 1)
        forward, back = (transfer.source, transfer.target), (transfer.target, transfer.source)
        num_tokens, box = self.plan.batch.tokens_per_sequence, transfer.box
        parts = {
            place: _part(box, boxes(instance, place[1], num_tokens)[rank])
            for place, rank in zip((here, there), forward, strict=True)
        }
        for (start, stop), ops, places in (
            (forward, (Op.SEND_ACTIVATION, Op.RECV_ACTIVATION), (here, there)),
            (back, (Op.SEND_GRADIENT, Op.RECV_GRADIENT), (there, here)),
        ):
            keys = (ops[0], places[0]), (ops[1], places[1])
            self.tag += 1
            if self.rank == start == stop:
                local = LocalChannel()
                self.senders[keys[0]].append((local, parts[places[0]]))
                self.receivers[keys[1]].append((local, parts[places[1]]))
                continue
            link = emulated_link(self.fleet, self.plan.workers[start], self.plan.workers[stop], in_lab=self.in_lab)
            channel = Channel(self.tag, start, stop, _shape(box, self.model), self.dtype, link)
            if self.rank == start:
                self.senders[keys[0]].append((ChannelSender(channel, self.plan.digest), parts[places[0]]))
            elif self.rank == stop:
                self.receivers[keys[1]].append((ChannelReceiver(channel, self.plan.digest), parts[places[1]]))
