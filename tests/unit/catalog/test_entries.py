"""The catalogue holds every published figure, each with where it is from."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyreme.catalog.entries import device_kinds, devices, link_kinds, links, sources
from polyreme.specs.fields import Precision

PUBLISHED = Path(__file__).parents[3].parent / "shared" / "data" / "hardware.yaml"


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    if not PUBLISHED.exists():
        pytest.skip("../shared/data is not there: the published figures cannot be compared")
    content: dict[str, Any] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return content


def device_figures(facts: dict[str, Any]) -> dict[str, float]:
    """Every number of a published device under the catalogue's name, in SI units."""
    intra = facts["intra"]
    found = {f"peak_flops_per_s.{key}": value * 1e12 for key, value in facts["peak"].items()}
    found["memory_bytes"] = facts["mem_gb"] * 1e9 if "mem_gb" in facts else facts["mem_gib"] * 2**30
    found["memory_bandwidth_bytes_per_s"] = facts["bw"] * 1e9
    if "link_gbps" in intra:
        found["link.one_link_bytes_per_s"] = intra["link_gbps"] * 1e9
        found["link.num_links"] = intra["links"]
        found["link.bandwidth_bytes_per_s"] = intra["link_gbps"] * intra["links"] * 1e9
    optional: list[tuple[dict[str, Any], str, str, float]] = [
        (facts, "mem_usable_gib", "usable_memory_bytes", 2**30),
        (facts, "streaming_mem_gb_per_ipu", "streaming_memory_bytes", 1e9),
        (facts, "tdp_w", "tdp_w", 1),
        (facts, "inter_gbps", "inter_link.bandwidth_bytes_per_s", 1e9),
        (facts, "mamf_bf16", "matmul_flops_per_s.bf16", 1e12),
        (facts, "mamf_bf16_v1", "matmul_flops_per_s.bf16", 1e12),
        (facts, "mamf_fp8", "matmul_flops_per_s.fp8", 1e12),
        (facts, "mamf_bf16_per_gcd", "matmul_flops_per_die_per_s.bf16", 1e12),
        (facts.get("price", {}), "usd_h", "price_usd_per_hour", 1),
        (intra, "gbps", "link.bandwidth_bytes_per_s", 1e9),
        (intra, "p2p_gbps", "link.peer_to_peer_bytes_per_s", 1e9),
        (intra, "hop_us", "link.latency_s", 1e-6),
    ]
    return found | {name: owner[key] * unit for owner, key, name, unit in optional if key in owner}


def link_figures(facts: dict[str, Any]) -> dict[str, float]:
    """Every number of a published link under the catalogue's name, in SI units."""
    names = {
        "gbps": ("bandwidth_bytes_per_s", 1e9),
        "gbps_node": ("bandwidth_bytes_per_s", 1e9),
        "gbps_host": ("bandwidth_bytes_per_s", 1e9),
        "effective_gbps_node": ("effective_bandwidth_bytes_per_s", 1e9),
        "effective": ("effective_fraction", 1),
        "p2p_gbps": ("peer_to_peer_bytes_per_s", 1e9),
        "latency_us": ("latency_s", 1e-6),
        "measured_allreduce_busbw": ("all_reduce_bus_bandwidth_bytes_per_s", 1e9),
    }
    found = {name: facts[key] * unit for key, (name, unit) in names.items() if key in facts}
    busbw = facts.get("measured_busbw", {})
    return found | {f"bus_bandwidth_bytes_per_s.{count}": value * 1e9 for count, value in busbw.items()}


def test_every_published_device_is_here_with_equal_figures(published: dict[str, Any]) -> None:
    assert set(devices()) == set(published["devices"])
    for name, facts in published["devices"].items():
        expected, found = device_figures(facts), devices()[name].figures
        assert set(found) == set(expected) | {"link.latency_s"}, name
        assert {key: found[key].value for key in expected} == pytest.approx(expected, rel=1e-12), name


def test_every_published_link_is_here_with_equal_figures(published: dict[str, Any]) -> None:
    assert set(links()) == set(published["links"])
    for name, facts in published["links"].items():
        expected, found = link_figures(facts), links()[name].figures
        assert set(found) == set(expected) | {"latency_s"}, name
        assert {key: found[key].value for key in expected} == pytest.approx(expected, rel=1e-12), name


def test_the_published_keys_are_all_known_to_this_test(published: dict[str, Any]) -> None:
    of_devices = {key for facts in published["devices"].values() for key in facts}
    assert of_devices == {
        *("peak", "mem_gb", "mem_gib", "mem_usable_gib", "streaming_mem_gb_per_ipu", "bw", "intra", "inter_gbps"),
        *("tdp_w", "mamf_bf16", "mamf_fp8", "mamf_bf16_v1", "mamf_bf16_per_gcd", "price", "src", "note"),
    }
    of_links = {key for facts in published["links"].values() for key in facts}
    assert of_links == {
        *("gbps", "gbps_node", "gbps_host", "effective_gbps_node", "effective", "p2p_gbps", "latency_us"),
        *("measured_allreduce_busbw", "measured_busbw", "src", "note"),
    }


def test_prices_keep_their_own_source(published: dict[str, Any]) -> None:
    for name, facts in published["devices"].items():
        if "price" in facts:
            figure = devices()[name].figures["price_usd_per_hour"]
            source = facts["price"]["src"]
            assert figure.sources == (source,), name
            assert figure.kind == ("memory" if source == "memory" else "vendor"), name


def test_figures_without_a_source_from_memory_are_those_of_the_vendor(published: dict[str, Any]) -> None:
    own = ("price_usd_per_hour", "matmul", "link.latency_s")
    for name, facts in published["devices"].items():
        if "memory" not in facts["src"]:
            for key, figure in devices()[name].figures.items():
                if not key.startswith(own):
                    assert (figure.kind, figure.sources) == ("vendor", tuple(facts["src"])), (name, key)


def test_only_a_benchmark_is_called_measured() -> None:
    for entry in [*devices().values(), *links().values()]:
        for name, figure in entry.figures.items():
            benchmark = name.startswith("matmul_flops") or "bus_bandwidth" in name
            assert (figure.kind == "measured") == benchmark, (entry.name, name)


def test_where_the_source_names_what_is_from_memory_the_rest_is_not() -> None:
    def from_memory(name: str) -> set[str]:
        return {key for key, figure in devices()[name].figures.items() if figure.kind == "memory"}

    peaks = {f"peak_flops_per_s.{precision}" for precision in ("bf16", "fp16", "fp8", "fp4")}
    assert from_memory("a100-pcie-40g") == from_memory("h100-pcie-80g") == {"tdp_w", "link.latency_s"}
    assert from_memory("b300") == from_memory("gb300") == peaks | {"link.latency_s"}
    assert {"tdp_w", "memory_bytes", "link.bandwidth_bytes_per_s"}.isdisjoint(from_memory("ipu-c600"))
    assert "peak_flops_per_s.fp8" in from_memory("ipu-c600")


def test_each_device_has_the_driver_of_its_family() -> None:
    of_vendor = {"nvidia": "cuda", "amd": "cuda", "huawei": "ascend", "graphcore": "ipu", "google": "tpu"}
    for entry in devices().values():
        expected = of_vendor.get(entry.vendor) or {"aws": "neuron", "intel": "hpu"}[entry.vendor]
        assert entry.driver == ("cpu" if entry.name == "xeon-8480" else expected), entry.name


def test_every_figure_says_where_it_is_from() -> None:
    for entry in [*devices().values(), *links().values()]:
        assert entry.figures, entry.name
        for name, figure in entry.figures.items():
            assert figure.kind in ("measured", "vendor", "memory"), (entry.name, name)
            assert figure.sources, (entry.name, name)
            assert set(figure.sources) <= set(sources()), (entry.name, name)


def test_a_figure_from_memory_is_never_called_measured_or_vendor() -> None:
    for entry in [*devices().values(), *links().values()]:
        for name, figure in entry.figures.items():
            if figure.sources == ("memory",):
                assert figure.kind == "memory", (entry.name, name)


def test_a_device_kind_carries_what_plans_compute_with() -> None:
    kind = device_kinds()["a100-sxm-80g"]
    assert kind.memory_bytes == 80e9
    assert kind.runs(Precision.BF16)
    assert not kind.runs(Precision.FP8)
    assert kind.link is not None
    assert kind.link.bandwidth_bytes_per_s == 300e9


def test_a_link_that_is_known_to_stay_below_its_wire_counts_what_it_reaches() -> None:
    assert link_kinds()["ethernet-100-tcp"].bandwidth_bytes_per_s == pytest.approx(7.5e9)
    assert link_kinds()["efa-v1"].bandwidth_bytes_per_s == pytest.approx(42.5e9)


def test_no_plan_counts_on_more_memory_than_the_device_has() -> None:
    assert devices()["b200"].figures["usable_memory_bytes"].value > 192e9
    assert device_kinds()["b200"].memory_bytes == 192e9
    for name, kind in device_kinds().items():
        assert kind.memory_bytes <= devices()[name].figures["memory_bytes"].value, name


def test_every_link_that_carries_bytes_can_be_named_in_a_cluster() -> None:
    assert set(links()) - set(link_kinds()) == {"nvlink-collective-launch"}


def test_the_catalogue_is_read_once_and_soon() -> None:
    script = (
        "import time; from polyreme.catalog.entries import device_kinds, link_kinds; start = time.process_time();"
        "device_kinds(); link_kinds(); print(time.process_time() - start)"
    )
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < 0.025
    assert device_kinds() is device_kinds()
