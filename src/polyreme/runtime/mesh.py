"""Rendezvous of the workers of one run, and the process groups that reductions use. Loopback only for local runs."""

import os
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from polyreme.errors import InputError
from polyreme.layout.instances import instances
from polyreme.layout.owners import Bucket
from polyreme.models.tensor_parallel import TensorGroup
from polyreme.runtime.addresses import Seat
from polyreme.runtime.gradsync import Reduction
from polyreme.specs.plan import Plan

RENDEZVOUS_TIMEOUT = timedelta(seconds=120)
EXCHANGE_TIMEOUT = timedelta(minutes=30)


def join(
    rank: int,
    world_size: int,
    port: int,
    listener: socket.socket | None,
    backend: str,
    seat: Seat = Seat(),  # noqa: B008 - frozen
    plan_digest: str = "",
) -> None:
    """Join the run's process group. Rank 0 brings the socket that the launcher bound.

    InputError if another rank has another plan: their messages would differ in size, which no backend survives.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface or ("lo0" if sys.platform == "darwin" else "lo")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        seat.address,
        port,
        world_size,
        is_master=listener is not None,
        timeout=RENDEZVOUS_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    if listener is not None or rank == 0:
        store.set("plan", plan_digest)
    agreed = store.get("plan").decode()
    if agreed != plan_digest:
        problem = f"rank {rank} has plan {plan_digest}, rank 0 has plan {agreed}"
        raise InputError.single("plan", problem, fix="give all workers the same plan.json")
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=EXCHANGE_TIMEOUT)


class GroupMaker:
    """Process groups by their ranks, each made once. Every rank must ask for all groups, in the same order."""

    def __init__(self) -> None:
        self._groups: dict[tuple[tuple[int, ...], str | None], dist.ProcessGroup] = {}

    def host(self) -> dist.ProcessGroup:
        """All ranks, for messages between host memories."""
        made = self.group(range(dist.get_world_size()), "gloo")
        assert made is not None, "a message needs two ranks"
        return made

    def channel(self, source: int, target: int) -> dist.ProcessGroup:
        """A new group of two ranks, each time: for backends that do not keep messages apart by tag."""
        made: dist.ProcessGroup = dist.new_group([source, target])
        return made

    def group(self, ranks: Sequence[int], backend: str | None = None) -> dist.ProcessGroup | None:
        """The group of `ranks`; None for a single rank, which needs none."""
        if len(ranks) == 1:
            return None
        key = (tuple(ranks), backend)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(ranks), backend=backend)
        return self._groups[key]


def reductions(
    buckets: Sequence[Bucket], rank: int, backends: Sequence[str], groups: GroupMaker
) -> dict[int, Reduction]:
    """How `rank` takes part in the reduction of each bucket; `backends` are those of all ranks' devices."""
    found = {}
    for number, bucket in enumerate(buckets):
        islands: dict[str, list[int]] = {}
        for owner in bucket.owners:
            islands.setdefault(backends[owner], []).append(owner)
        made = {backend: groups.group(members) for backend, members in islands.items()}
        leaders = groups.group([members[0] for members in islands.values()], "gloo") if len(islands) > 1 else None
        if rank in bucket.owners:
            found[number] = Reduction(made[backends[rank]], leaders, islands[backends[rank]][0])
    return found


def tensor_groups(plan: Plan, rank: int, groups: GroupMaker) -> dict[tuple[str, int], TensorGroup]:
    """(pipeline, stage) -> the tensor ranks that `rank` works with there."""
    found = {}
    for instance in instances(plan):
        for stage in range(instance.num_stages):
            for group, ranks in instance.groups(stage):
                for first in range(0, len(ranks), group.tp):
                    members = ranks[first : first + group.tp]
                    made = groups.group(members)
                    if rank in members:
                        found[instance.name, stage] = TensorGroup(members.index(rank), group.tp, made)
    return found


def leave() -> None:
    """Leave the process group."""
    dist.destroy_process_group()
