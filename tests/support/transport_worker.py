"""Two workers with one channel each way, over a transport that the settings name, doing what a scenario says."""

import json
import os
import signal
import socket
import traceback
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from polyreme.runtime.launch import die_with_launcher
from polyreme.runtime.mesh import GroupMaker, join, leave
from polyreme.runtime.transports.base import Channel, PeerLostError, Receiver, Sender
from polyreme.runtime.transports.c10d import C10dReceiver, C10dSender
from polyreme.runtime.transports.messages import Kind
from polyreme.runtime.transports.shm import SharedReceiver, SharedSender, address_of
from polyreme.runtime.transports.staged import StagedReceiver, StagedSender
from polyreme.specs.fields import Transport

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DIGEST = "0123456789abcdef" * 2


def payload(number: int, shape: list[int], dtype: torch.dtype, sender: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * sender + number)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def open_ends(settings: dict, rank: int, dtype: torch.dtype) -> tuple[Sender, Receiver]:  # type: ignore[type-arg]
    transport, other = Transport(settings["transport"]), 1 - rank
    channels = [
        Channel(Kind(DIGEST, tag, dtype, tuple(settings["shape"])), tag, 1 - tag, f"rank {tag} -> rank {1 - tag}", 2)
        for tag in (0, 1)
    ]
    if transport is Transport.C10D:
        return C10dSender(channels[rank]), C10dReceiver(channels[other])
    if transport is Transport.STAGED:
        host = GroupMaker().host()
        return StagedSender(channels[rank], host), StagedReceiver(channels[other], host)
    receiver = SharedReceiver(channels[other], address_of(f"test-{settings['port']}", other))
    torch.distributed.barrier()
    sender = SharedSender(channels[rank], address_of(f"test-{settings['port']}", rank))
    receiver.accept()
    sender.take_memory()
    return sender, receiver


def transport_main(content: bytes, pipe: Connection, listener: "socket.socket | None") -> None:
    die_with_launcher()
    settings = json.loads(content)
    rank, count, dtype = settings["rank"], settings["count"], DTYPES[settings["dtype"]]
    try:
        torch.set_num_threads(1)
        join(rank, 2, settings["port"], listener, "gloo", plan_digest=settings.get("digests", ["", ""])[rank])
        sender, receiver = open_ends(settings, rank, dtype)
        receiver.expect(3, range(count))
        if settings["scenario"] == "die" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step = 4 if settings["scenario"] == "wrong step" and rank == 0 else 3
        equal = True
        for number in range(count):
            sender.send(step, number, payload(number, settings["shape"], dtype, rank))
            got = receiver.receive(3, number)
            equal &= torch.equal(got, payload(number, settings["shape"], dtype, 1 - rank))
        sender.flush()
        pipe.send_bytes(json.dumps({"type": "equal", "equal": equal}).encode())
        torch.distributed.barrier()
        leave()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test must see it
        kind = type(error).__name__
        said = {"peer_lost": isinstance(error, PeerLostError), "exception": f"{kind}: {error}"}
        pipe.send_bytes(json.dumps({"type": "failed", **said, "trace": traceback.format_exc()}).encode())
        os._exit(4)
    os._exit(0)
