"""A worker that sums one bucket over islands of made-up backends and reports what it got."""

import json
import os
import socket
import traceback
from multiprocessing.connection import Connection

import torch

from polyreme.layout.owners import Bucket
from polyreme.runtime.gradsync import sum_over_owners
from polyreme.runtime.launch import die_with_launcher
from polyreme.runtime.mesh import GroupMaker, join, leave, reductions

BACKENDS = ("one", "one", "two", "one", "three")
OWNERS = ((0, 1, 3), (0, 2), (0, 1, 2, 3, 4), (1, 2, 4))


def values(rank: int, bucket: int) -> torch.Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(97 * rank + bucket))


def reduction_main(content: bytes, pipe: Connection, listener: "socket.socket | None") -> None:
    die_with_launcher()
    settings = json.loads(content)
    rank = settings["rank"]
    try:
        torch.set_num_threads(1)
        join(rank, len(BACKENDS), settings["port"], listener, "gloo")
        buckets = [Bucket(owners, ()) for owners in OWNERS]
        how = reductions(buckets, rank, BACKENDS, GroupMaker())
        assert set(how) == {number for number, owners in enumerate(OWNERS) if rank in owners}
        for number, reduction in how.items():
            flat = values(rank, number)
            sum_over_owners(flat, reduction)
            pipe.send_bytes(json.dumps({"type": "sum", "bucket": number, "values": flat.tolist()}).encode())
        leave()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test must see it
        message = {"type": "failed", "exception": "".join(traceback.format_exception(error))}
        pipe.send_bytes(json.dumps(message).encode())
        os._exit(4)
    os._exit(0)
