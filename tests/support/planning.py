"""Questions for planner tests, from kinds and nodes in a line each."""

from collections.abc import Sequence

from random_fleets import small_model

from polyreme.catalog.fleet import build_fleet
from polyreme.costs.model import CostModel
from polyreme.planner.assemble import Question
from polyreme.specs.cluster import ClusterSpec, Connection, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Objective, Precision
from polyreme.specs.job import Batch, JobSpec, Limits
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Inputs
from polyreme.specs.profile import ProfileSpec

NET = LinkKind(name="net", bandwidth_bytes_per_s=1e10, latency_s=1e-5)


def question(
    kinds: Sequence[DeviceKind],
    nodes: dict[str, dict[str, int]],
    *,
    model: ModelSpec | None = None,
    sequences: int = 16,
    tokens: int = 64,
    precision: Precision = Precision.FP32,
    objective: Objective = Objective.TIME,
    limits: Limits | None = None,
    cut: Sequence[tuple[str, str]] = (),
    profile: ProfileSpec | None = None,
) -> Question:
    """`nodes` maps a node to how many devices of each kind it has; `cut` are pairs of nodes without a link."""
    cluster = ClusterSpec(
        name="c",
        nodes=tuple(
            Node(
                name=node,
                devices=tuple(DeviceEntry(kind=kind, count=count, name=kind) for kind, count in counts.items()),
                links=NodeLinks(intra="net", inter="net"),
            )
            for node, counts in nodes.items()
        ),
        device_kinds=tuple(kinds),
        link_kinds=(NET,),
        connections=tuple(Connection(source=one, target=other, link="none") for one, other in cut),
    )
    job = JobSpec(
        name="j",
        model="m",
        cluster="c",
        batch=Batch(sequences=sequences, tokens_per_sequence=tokens),
        precision=precision,
        objective=objective,
        limits=limits or Limits(),
    )
    costs = CostModel(model or small_model(8, 256), build_fleet(cluster), precision, tokens, profile)
    return Question(job, costs, Inputs(model="0" * 8, cluster="0" * 8, job="0" * 8))
