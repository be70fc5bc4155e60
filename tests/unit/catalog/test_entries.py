"""The catalogue holds every published figure, each with where it is from."""

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


def test_every_published_device_is_here_with_equal_figures(published: dict[str, Any]) -> None:
    assert set(devices()) == set(published["devices"])
    for name, facts in published["devices"].items():
        entry = devices()[name]
        memory = facts["mem_gb"] * 1e9 if "mem_gb" in facts else facts["mem_gib"] * 2**30
        assert entry.value("memory_bytes") == pytest.approx(memory), name
        assert entry.value("memory_bandwidth_bytes_per_s") == pytest.approx(facts["bw"] * 1e9), name
        assert entry.value("tdp_w") == facts.get("tdp_w"), name
        assert entry.value("price_usd_per_hour") == facts.get("price", {}).get("usd_h"), name
        peaks = {str(key): value for key, value in (entry.by_precision("peak_flops_per_s") or {}).items()}
        assert peaks == pytest.approx({key: value * 1e12 for key, value in facts["peak"].items()}), name
        if "mamf_bf16" in facts:
            assert entry.value("matmul_flops_per_s.bf16") == pytest.approx(facts["mamf_bf16"] * 1e12), name
        if "gbps" in facts["intra"]:
            assert entry.value("link.bandwidth_bytes_per_s") == pytest.approx(facts["intra"]["gbps"] * 1e9), name


def test_every_published_link_is_here_with_equal_figures(published: dict[str, Any]) -> None:
    assert set(links()) == set(published["links"])
    for name, facts in published["links"].items():
        if "gbps" in facts:
            assert links()[name].value("bandwidth_bytes_per_s") == pytest.approx(facts["gbps"] * 1e9), name
        if "latency_us" in facts:
            assert links()[name].value("latency_s") == pytest.approx(facts["latency_us"] * 1e-6), name


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
