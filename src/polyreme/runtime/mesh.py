"""Rendezvous of the workers of one run, and the process groups that reductions use. Loopback only for local runs."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist

from polyreme.runtime.addresses import LOOPBACK

RENDEZVOUS_TIMEOUT = timedelta(seconds=120)
EXCHANGE_TIMEOUT = timedelta(minutes=30)

Groups = Mapping[tuple[int, ...], dist.ProcessGroup]


def join(rank: int, world_size: int, port: int, listener: socket.socket | None, backend: str) -> None:
    """Join the run's process group. Rank 0 brings the socket that the launcher bound to loopback."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK,
        port,
        world_size,
        is_master=listener is not None,
        timeout=RENDEZVOUS_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=EXCHANGE_TIMEOUT)


def reduction_groups(owner_sets: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """A process group per distinct owner set. Every rank creates every group, in the same order."""
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for owners in owner_sets:
        if owners not in groups:
            groups[owners] = dist.new_group(list(owners))
    return groups


def leave() -> None:
    """Leave the process group."""
    dist.destroy_process_group()
