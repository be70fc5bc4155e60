"""Small files that ask for a lot, and large files that are all wrong, are refused soon."""

import time
from pathlib import Path

import pytest
from spec_samples import CLUSTER, load_fleet

from polyreme.errors import InputError

ENTRY = "- {name: n%d, devices: []}\n"
TEXTS = {
    "devices": (CLUSTER.replace("count: 2", "count: 1e9"), "more than 100000 devices"),
    "devices times nodes": (
        CLUSTER.replace("count: 2", "count: 100").replace("name: node[0-1]", "name: node[0-9999]"),
        "more than 100000 devices",
    ),
    "nodes": (CLUSTER.replace("name: node[0-1]", "name: node[0-999999]"), "more than 100000 names"),
    "connections": (CLUSTER.replace('"node[0-1]"', '"node[0-99999]"'), "'node2' is no node"),
    "pairs": (
        CLUSTER.replace("name: node[0-1]", "name: node[0-9999]")
        .replace("from: edge", 'from: "node[0-9999]"')
        .replace('"node[0-1]"', '"node[0-9999]"'),
        "more than 1000000 pairs",
    ),
    "empty nodes": (
        "name: x\nnodes:\n" + "".join(ENTRY % number for number in range(20_000)),
        "nodes[9].devices: got []",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_cluster_that_asks_for_too_much_is_refused_within_two_seconds(name: str, tmp_path: Path) -> None:
    text, problem = TEXTS[name]
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        load_fleet(path)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 20_000
    assert time.process_time() - started < 2


def test_unknown_nodes_of_a_connection_are_named_in_order_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace('to: "node[0-1]"', 'to: "node[0-99]"'))
    with pytest.raises(InputError) as caught:
        load_fleet(path)
    problems = [fault.problem for fault in caught.value.faults]
    assert problems == [*(f"'node{number}' is no node" for number in range(2, 10)), "90 more names are no nodes"]


def test_ten_thousand_devices_resolve_soon(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace("count: 2", "count: 7").replace("node[0-1]", "node[0-1249]"))
    started = time.process_time()
    assert len(load_fleet(path).devices) == 1250 * 8 + 1
    assert time.process_time() - started < 1
