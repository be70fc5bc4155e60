"""The cluster a person describes: nodes, their devices and link planes, prices, and who can reach whom."""

from typing import Annotated, Literal

from annotated_types import Len
from pydantic import Field

from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Flag, NonNegativeFloat, PositiveFloat, PositiveInt, Text, spec


@spec
class DeviceEntry:
    """`count` equal devices of a node. `kind` is a name of the catalogue or of the file's own `device_kinds`.

    Devices are called `<node>/<name><index>`, counted per name within the node; `name` defaults by driver
    (gpu, npu, ipu, ...).
    """

    kind: Text
    count: PositiveInt = 1
    name: Text | None = None
    price_usd_per_hour: NonNegativeFloat | None = None


@spec
class NodeLinks:
    """The two link planes of a node, by name: between its own devices, and to other nodes."""

    intra: Text | None = None
    inter: Text | None = None


@spec
class Node:
    """A machine, or several equal ones if `name` holds a range such as `node[0-7]`."""

    name: Text
    devices: Annotated[tuple[DeviceEntry, ...], Len(1)]
    links: NodeLinks = NodeLinks()
    host_memory_bytes: PositiveFloat | None = None


@spec
class Connection:
    """An exception to the default that every node reaches every other by its inter plane. `link: none` cuts the way."""

    source: Annotated[Text, Field(alias="from")]
    target: Annotated[Text, Field(alias="to")]
    link: Text
    both_ways: Flag = True


@spec
class ClusterSpec:
    """All nodes of a cluster and the kinds of device and link that the file itself defines."""

    schema: Literal["polyreme.cluster/1"] = "polyreme.cluster/1"
    name: Text
    nodes: Annotated[tuple[Node, ...], Len(1)]
    device_kinds: tuple[DeviceKind, ...] = ()
    link_kinds: tuple[LinkKind, ...] = ()
    connections: tuple[Connection, ...] = ()
