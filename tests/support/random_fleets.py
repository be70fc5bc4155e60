"""Random small fleets and models for planner tests: memory and links that bind now and then."""

import random

from polyreme.catalog.fleet import build_fleet
from polyreme.costs.model import CostModel
from polyreme.specs.cluster import ClusterSpec, Connection, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Precision
from polyreme.specs.model import ModelFamily, ModelSpec


def small_model(num_blocks: int, hidden: int = 64) -> ModelSpec:
    return ModelSpec(
        name="small",
        family=ModelFamily.LLAMA,
        num_layers=num_blocks,
        hidden_size=hidden,
        num_heads=4,
        ffn_hidden_size=2 * hidden,
        vocab_size=512,
    )


def kind(name: str, flops_per_s: float, memory_bytes: float, price: float = 1.0) -> DeviceKind:
    return DeviceKind(
        name=name,
        driver="cuda",
        memory_bytes=memory_bytes,
        peak_flops_per_s={Precision.FP32: flops_per_s},
        memory_bandwidth_bytes_per_s=1e12,
        link=LinkKind(name="own", bandwidth_bytes_per_s=50e9, latency_s=1e-6),
        tdp_w=100.0,
        price_usd_per_hour=price,
    )


def random_costs(seed: int) -> CostModel:
    """One to three kinds, up to five devices on one to three nodes, two to six blocks."""
    draw = random.Random(seed)  # noqa: S311
    model = small_model(draw.randint(2, 6))
    context = 1.6e9
    kinds = [
        kind(
            f"k{index}",
            draw.choice([1e11, 2e11, 4e11]),
            context + draw.choice([2e6, 4e6, 8e6, 100e6]),
            draw.choice([1, 2, 7]),
        )
        for index in range(draw.randint(1, 3))
    ]
    nodes, left = [], 5
    for index in range(draw.randint(1, 3)):
        count = min(left, draw.randint(1, 2))
        if count:
            left -= count
            entry = DeviceEntry(kind=draw.choice(kinds).name, count=count, name="d")
            nodes.append(Node(name=f"n{index}", devices=(entry,), links=NodeLinks(inter="net")))
    cuts = [
        Connection(
            source=one.name,
            target=other.name,
            link=draw.choice(["none", "slow-net", "fast-net"]),
            both_ways=draw.random() < 0.5,
        )
        for one in nodes
        for other in nodes
        if one.name < other.name and draw.random() < 0.6
    ]
    cluster = ClusterSpec(
        name="random",
        nodes=tuple(nodes),
        device_kinds=tuple(kinds),
        link_kinds=(
            LinkKind(name="net", bandwidth_bytes_per_s=draw.choice([1e8, 1e9, 1e10]), latency_s=1e-5),
            LinkKind(name="slow-net", bandwidth_bytes_per_s=2e7, latency_s=1e-4),
            LinkKind(name="fast-net", bandwidth_bytes_per_s=2e10, latency_s=2e-6),
        ),
        connections=tuple(cuts),
    )
    return CostModel(model, build_fleet(cluster), Precision.FP32, tokens_per_sequence=64)


def random_places(draw: random.Random) -> list[tuple[int, ...]]:
    """Stages of a pipeline dealt out to workers at random, at least one to each."""
    num_places = draw.randint(1, 5)
    num_stages = draw.randint(num_places, 3 * num_places)
    holders = [*range(num_places), *(draw.randrange(num_places) for _ in range(num_stages - num_places))]
    draw.shuffle(holders)
    held = [tuple(s for s in range(num_stages) if holders[s] == place) for place in range(num_places)]
    return sorted(held)
