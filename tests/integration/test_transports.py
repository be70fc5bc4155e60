"""One conformance suite for all transports, between two real processes."""

import signal
import time
from typing import Any

import pytest
from transport_worker import transport_main

from polyreme.catalog.fleet import build_fleet
from polyreme.errors import InputError
from polyreme.runtime.launch import Failure, Workers
from polyreme.runtime.transports.choose import choose_transport
from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Transport

pytestmark = pytest.mark.parametrize("transport", list(Transport))


def heard_of(transport: Transport, **scenario: Any) -> list[Any]:
    settings = {"transport": transport, "shape": [2, 3], "dtype": "fp32", "count": 20, "scenario": "plain", **scenario}
    with Workers(transport_main, [settings, settings], "polyreme.training.preload") as workers:
        return list(workers.messages())


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", [[2, 3, 5], [1], [700, 900]], ids=str)
def test_messages_arrive_bit_for_bit_and_in_order_both_ways_at_once(
    shape: list[int], dtype: str, transport: Transport
) -> None:
    """Twenty messages over three slots or two posted receives; the largest take several chunks."""
    heard = heard_of(transport, shape=shape, dtype=dtype)
    assert [message["equal"] for _, message in heard] == [True, True]


def test_a_message_of_another_step_is_named_with_both_ends(transport: Transport) -> None:
    *_, failure = heard_of(transport, scenario="wrong step")
    assert isinstance(failure, Failure)
    assert failure.message is not None
    assert "rank 0 -> rank 1: a message with step 4 instead of 3 arrived" in failure.message["exception"]


def test_a_killed_peer_is_noticed_at_once(transport: Transport) -> None:
    begun = time.monotonic()
    *_, failure = heard_of(transport, scenario="die", count=1000)
    assert time.monotonic() - begun < 10
    assert failure == Failure(1, -signal.SIGKILL, None)


def test_workers_with_different_plans_are_told_apart_before_they_talk(transport: Transport) -> None:
    *_, failure = heard_of(transport, digests=["a" * 32, "b" * 32])
    assert isinstance(failure, Failure)
    assert failure.message is not None
    assert f"rank 1 has plan {'b' * 32}, rank 0 has plan {'a' * 32}" in failure.message["exception"]


def test_the_choice_follows_memory_and_backend(transport: Transport) -> None:
    links = NodeLinks(intra="wire", inter="wire")
    entries = (DeviceEntry(kind="cpu", count=2), DeviceEntry(kind="a100-sxm-80g", count=2))
    cluster = ClusterSpec(
        name="c",
        nodes=tuple(Node(name=name, devices=entries, links=links) for name in ("one", "two")),
        device_kinds=(DeviceKind(name="cpu", driver="cpu", memory_bytes=1e9),),
        link_kinds=(LinkKind(name="wire", bandwidth_bytes_per_s=1e9, latency_s=1e-5),),
    )
    fleet = build_fleet(cluster)
    cpu, other_cpu, far_cpu = (fleet.device(name) for name in ("one/cpu0", "one/cpu1", "two/cpu0"))
    gpu, far_gpu = (fleet.device(name) for name in ("one/gpu0", "two/gpu0"))
    assert choose_transport(cpu, other_cpu) is Transport.SHM
    assert choose_transport(cpu, far_cpu) is Transport.C10D
    assert choose_transport(gpu, far_gpu) is Transport.C10D
    assert choose_transport(cpu, gpu) is choose_transport(gpu, far_cpu) is Transport.STAGED
    possible = {Transport.SHM: (cpu, other_cpu), Transport.C10D: (gpu, far_gpu), Transport.STAGED: (cpu, other_cpu)}
    assert choose_transport(*possible[transport], transport) is transport
    if transport is not Transport.STAGED:
        with pytest.raises(InputError, match=f"transport {transport} between one/cpu0 and one/gpu0"):
            choose_transport(cpu, gpu, transport)
