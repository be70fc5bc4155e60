"""A cluster file resolved into devices and the links between them."""

from typing import Any

import pytest

from polyreme.catalog.entries import device_kinds, link_kinds
from polyreme.catalog.fleet import Fleet, build_fleet
from polyreme.errors import InputError
from polyreme.specs.cluster import ClusterSpec, Connection, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind

ETHERNET = NodeLinks(inter="ethernet-25")


def node(name: str, *devices: DeviceEntry, links: NodeLinks = ETHERNET) -> Node:
    return Node(name=name, devices=devices or (DeviceEntry(kind="t4"),), links=links)


def fleet(*nodes: Node, connections: tuple[Connection, ...] = (), **own: Any) -> Fleet:
    return build_fleet(ClusterSpec(name="test", nodes=nodes, connections=connections, **own), "c.yaml")


def link_of(found: Fleet, source: str, target: str) -> LinkKind | None:
    return found.link(found.device(source), found.device(target))


def faults(*nodes: Node, connections: tuple[Connection, ...] = (), **own: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        fleet(*nodes, connections=connections, **own)
    return [str(fault) for fault in caught.value.faults]


def connection(source: str, target: str, link: str, *, both_ways: bool = True) -> Connection:
    return Connection(source=source, target=target, link=link, both_ways=both_ways)


def test_unknown_names_are_all_reported_with_their_places_and_the_nearest_names() -> None:
    found = faults(
        node("a", DeviceEntry(kind="t4"), DeviceEntry(kind="h100-smx-80g")),
        node("b", links=NodeLinks(intra="nvlnk4", inter="ib-ndx")),
    )
    text = "\n".join(found)
    assert len(found) == 3
    assert "c.yaml: nodes[0].devices[1].kind" in text
    assert "did you mean h100-sxm-80g?" in text
    assert "nodes[1].links.intra: 'nvlnk4'" in text
    assert "did you mean nvlink4?" in text
    assert "nodes[1].links.inter: 'ib-ndx'" in text


def test_an_unknown_name_like_no_other_gets_no_guess() -> None:
    [found] = faults(node("a", DeviceEntry(kind="zzzzzzzz")))
    assert "'zzzzzzzz' is no device of the catalogue or of device_kinds" in found
    assert "did you mean" not in found


def test_a_node_that_appears_twice_is_refused_also_through_a_range() -> None:
    [found] = faults(node("n[0-2]"), node("n1"))
    assert "node 'n1' appears 2 times" in found


def test_a_range_makes_nodes_in_order_and_keeps_zeros() -> None:
    found = fleet(node("n[08-10]", DeviceEntry(kind="t4", count=2)))
    assert [device.name for device in found.devices] == [f"n{n}/gpu{i}" for n in ("08", "09", "10") for i in (0, 1)]


@pytest.mark.parametrize(
    ("name", "said"),
    [("n[3-1]", "runs backwards"), ("n[1]", "a bracket that is no range"), ("n[0-99999]x[0-9]", "more than 100000")],
)
def test_a_range_that_is_none_is_a_fault_of_the_name(name: str, said: str) -> None:
    [found] = faults(node(name))
    assert found.startswith("c.yaml: nodes[0].name")
    assert said in found


def test_too_many_devices_are_refused_before_they_are_made() -> None:
    [found] = faults(node("n[0-9999]", DeviceEntry(kind="t4", count=1_000_000)))
    assert "makes more than 100000 devices in all" in found


def test_a_mixed_node_counts_devices_by_name_and_joins_unlike_ones_by_the_slower_link() -> None:
    found = fleet(
        node(
            "m",
            DeviceEntry(kind="a100-sxm-80g", count=2),
            DeviceEntry(kind="ascend-910b"),
            DeviceEntry(kind="ipu-c600"),
            DeviceEntry(kind="t4"),
            DeviceEntry(kind="t4", name="spare"),
        )
    )
    assert [device.name for device in found.devices] == ["m/gpu0", "m/gpu1", "m/npu0", "m/ipu0", "m/gpu2", "m/spare0"]
    assert found.device("m/gpu2").kind == device_kinds()["t4"]
    link = link_of(found, "m/gpu0", "m/npu0")
    assert link is not None
    assert link.bandwidth_bytes_per_s == 196e9
    assert link.latency_s == 2e-6, "the slower latency of the two"
    back = link_of(found, "m/npu0", "m/gpu0")
    assert back is not None
    assert back.bandwidth_bytes_per_s == 196e9


def test_the_intra_plane_of_a_node_comes_before_its_devices_own_links() -> None:
    found = fleet(node("m", DeviceEntry(kind="a100-sxm-80g", count=2), links=NodeLinks(intra="pcie4-x16")))
    assert link_of(found, "m/gpu0", "m/gpu1") == link_kinds()["pcie4-x16"]


def test_nodes_reach_each_other_by_the_slower_inter_plane_or_not_at_all() -> None:
    found = fleet(node("a", links=NodeLinks(inter="ib-ndr")), node("b"), node("c", links=NodeLinks()))
    link = link_of(found, "a/gpu0", "b/gpu0")
    assert link is not None
    assert link.bandwidth_bytes_per_s == 3.1e9
    assert link.latency_s == 25e-6
    assert link_of(found, "a/gpu0", "c/gpu0") is None


def test_a_connection_one_way_leaves_the_way_back_as_it_was() -> None:
    found = fleet(node("a"), node("b"), connections=(connection("a", "b", "wan", both_ways=False),))
    assert link_of(found, "a/gpu0", "b/gpu0") == link_kinds()["wan"]
    assert link_of(found, "b/gpu0", "a/gpu0") == link_kinds()["ethernet-25"]


def test_a_connection_holds_both_ways_unless_it_says_otherwise_and_the_later_wins() -> None:
    found = fleet(node("n[0-3]"), connections=(connection("n[0-1]", "n[2-3]", "wan"), connection("n0", "n2", "ib-ndr")))
    for there, back in (("n1/gpu0", "n3/gpu0"), ("n3/gpu0", "n1/gpu0")):
        assert link_of(found, there, back) == link_kinds()["wan"]
    assert link_of(found, "n2/gpu0", "n0/gpu0") == link_kinds()["ib-ndr"]
    assert link_of(found, "n0/gpu0", "n1/gpu0") == link_kinds()["ethernet-25"]


def test_link_none_cuts_the_way_in_the_directions_that_it_names() -> None:
    both = fleet(node("a"), node("b"), connections=(connection("a", "b", "none"),))
    assert link_of(both, "a/gpu0", "b/gpu0") is None
    assert link_of(both, "b/gpu0", "a/gpu0") is None
    one = fleet(node("a"), node("b"), connections=(connection("a", "b", "none", both_ways=False),))
    assert link_of(one, "a/gpu0", "b/gpu0") is None
    assert link_of(one, "b/gpu0", "a/gpu0") is not None


def test_a_connection_of_unknown_nodes_or_links_names_each() -> None:
    found = faults(node("alpha"), connections=(connection("alpah", "beta", "wann"),))
    text = "\n".join(found)
    assert "connections[0].link: 'wann'" in text
    assert "connections[0].from: 'alpah' is no node; did you mean alpha?" in text
    assert "connections[0].to: 'beta' is no node" in text


def test_many_unknown_nodes_of_one_range_are_counted_not_listed() -> None:
    found = faults(node("a"), connections=(connection("x[0-99]", "a", "wan"),))
    assert len(found) == 9
    assert "92 more names are no nodes" in found[-1]


def test_a_price_of_the_node_replaces_the_one_of_the_catalogue_for_its_devices_only() -> None:
    found = fleet(
        node("a", DeviceEntry(kind="a100-sxm-80g", price_usd_per_hour=0.5), DeviceEntry(kind="a100-sxm-80g")),
        node("b", DeviceEntry(kind="a100-sxm-80g", price_usd_per_hour=0.0)),
    )
    assert [device.kind.price_usd_per_hour for device in found.devices] == [0.5, 2.79, 0.0]
    assert device_kinds()["a100-sxm-80g"].price_usd_per_hour == 2.79


def test_kinds_of_the_file_add_to_the_catalogue_and_come_before_it() -> None:
    own = DeviceKind(name="t4", driver="cuda", memory_bytes=1e9)
    slow = LinkKind(name="string", bandwidth_bytes_per_s=1.0, latency_s=0.5)
    found = fleet(
        node("a", links=NodeLinks(inter="string")),
        node("b", links=NodeLinks(inter="string")),
        device_kinds=(own,),
        link_kinds=(slow,),
    )
    assert found.device("a/gpu0").kind == own
    assert link_of(found, "a/gpu0", "b/gpu0") == slow
    assert device_kinds()["t4"].memory_bytes == 16e9


def test_a_kind_that_the_file_defines_twice_is_refused() -> None:
    own = DeviceKind(name="mine", driver="cuda", memory_bytes=1e9)
    [found] = faults(node("a"), device_kinds=(own, own))
    assert "device_kinds: 'mine' is defined 2 times" in found


def test_a_device_asked_for_by_a_wrong_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean node/gpu0"):
        fleet(node("node")).device("node/gqu0")
