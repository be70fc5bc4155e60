"""`polyreme devices` as a user runs it: lists, filters, comparisons, refusals."""

import json
import re

import pytest

from polyreme.catalog.entries import devices, links
from polyreme.cli.main import main

Capture = pytest.CaptureFixture[str]


def rows(out: str) -> list[list[str]]:
    """Words of the lines that begin with a device's or link's name."""
    return [words for line in out.splitlines() if (words := line.split()) and words[0] in devices() | links()]


def test_all_devices_are_listed_by_name_within_100_columns(capsys: Capture) -> None:
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert sorted(row[0] for row in rows(out)) == sorted(devices())
    assert max(len(line) for line in out.splitlines()) <= 100
    row = next(row for row in rows(out) if row[0] == "trainium3")
    assert row[-2:] == ["-", "-"], "neither power nor price is known"


def test_filters_narrow_the_list(capsys: Capture) -> None:
    assert main(["devices", "--vendor", "graphcore", "--precision", "fp8"]) == 0
    out = capsys.readouterr().out
    assert [row[0] for row in rows(out)] == ["ipu-c600"]
    assert "560" in out
    assert "1 device;" in out
    assert main(["devices", "--min-memory-gb", "192", "--vendor", "amd"]) == 0
    assert {row[0] for row in rows(capsys.readouterr().out)} == {"mi300x", "mi325x", "mi355x"}


@pytest.mark.parametrize(
    ("key", "figure"),
    [
        ("memory", "memory_bytes"),
        ("bandwidth", "memory_bandwidth_bytes_per_s"),
        ("price", "price_usd_per_hour"),
        ("power", "tdp_w"),
    ],
)
def test_sorting_puts_the_largest_first_and_the_unknown_last(key: str, figure: str, capsys: Capture) -> None:
    assert main(["devices", "--sort", key]) == 0
    found = [devices()[row[0]].value(figure) for row in rows(capsys.readouterr().out)]
    known = [value for value in found if value is not None]
    assert known == sorted(known, reverse=True)
    assert found == known + [None] * (len(found) - len(known))


def test_sorting_by_compute_follows_the_chosen_precision(capsys: Capture) -> None:
    assert main(["devices", "--sort", "compute", "--precision", "fp4"]) == 0
    assert [row[0] for row in rows(capsys.readouterr().out)] == ["gb300", "b300", "gb200", "mi355x", "b200"]


def test_a_comparison_gives_source_kind_and_ratio_to_the_first(capsys: Capture) -> None:
    assert main(["devices", "a100-sxm-80g", "h100-sxm-80g", "ascend-910b"]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 100
    bf16 = re.search(r"peak_flops_per_s\.bf16(.*?)peak_flops_per_s\.fp16", out, re.DOTALL)
    assert bf16 is not None
    words = " ".join(bf16[1].split())
    for part in ("312 TFLOP/s", "989 TFLOP/s (3.17x)", "320 TFLOP/s (1.03x)", "vendor", "memory"):
        assert part in words, part
    assert "640 TOP/s" in out
    assert "measured: ml-eng" in out
    assert "skypilot-org" in out, "sources are spelt out below"


def test_a_name_given_twice_is_shown_once(capsys: Capture) -> None:
    assert main(["devices", "t4", "t4", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["entries"]) == ["t4"]
    assert main(["devices", "t4", "t4"]) == 0
    assert capsys.readouterr().out.count("t4: Capped") == 1


def test_links_say_the_kind_of_bandwidth_and_of_latency_apart(capsys: Capture) -> None:
    assert main(["devices", "--links"]) == 0
    found = {row[0]: row[1:] for row in rows(capsys.readouterr().out)}
    assert set(found) == set(links())
    assert found["ib-xdr"] == ["100", "GB/s", "vendor", "1.00", "us", "memory", "ml-eng-net,", "memory"]
    assert found["nvlink-collective-launch"][:2] == ["-", "-"]


def test_json_holds_every_figure_and_what_sources_stand_for(capsys: Capture) -> None:
    assert main(["devices", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content["entries"]) == set(devices())
    figure = content["entries"]["h100-sxm-80g"]["figures"]["matmul_flops_per_s.bf16"]
    assert figure == {"value": 794.5e12, "kind": "measured", "sources": ["ml-eng"]}
    assert "ml-eng" in content["sources"]


def test_filters_that_nothing_passes_say_so(capsys: Capture) -> None:
    assert main(["devices", "--min-memory-gb", "9999"]) == 0
    assert capsys.readouterr().out == "no device of the catalogue passes these filters\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["h100-smx-80g"], "did you mean h100-sxm-80g"),
        (["a100"], "did you mean a100-sxm-40g, a100-sxm-80g, a100-pcie-40g, a100-pcie-80g?"),
        (["A100"], "did you mean a100-sxm-40g"),
        (["zzzzzz"], "without names the command lists all"),
        ([""], "'' is not in the catalogue"),
        (["nvlink4"], "'nvlink4' is a link; add --links"),
        (["--links", "t4"], "'t4' is a device; leave out --links"),
        (["--links", "nvlnk4"], "did you mean nvlink4"),
        (["t4", "--vendor", "amd"], "--vendor: does not go with names"),
        (["--links", "--vendor", "amd", "--sort", "price"], "--vendor, --sort: is about devices, not links"),
        (["--min-memory-gb", "nan"], "--min-memory-gb: nan is no memory size"),
        (["--min-memory-gb=-3"], "--min-memory-gb: -3 is no memory size"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_out(arguments: list[str], said: str, capsys: Capture) -> None:
    assert main(["devices", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("arguments", [["--vendor", "acme"], ["--precision", "fp7"], ["--sort", "age"]])
def test_a_value_that_is_no_choice_exits_with_2(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["devices", *arguments])
    assert stopped.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_every_wrong_name_is_reported_at_once(capsys: Capture) -> None:
    assert main(["devices", "a100-sxm-80", "tpuv4", "t4"]) == 2
    error = capsys.readouterr().err
    assert "2 faults" in error
    assert "a100-sxm-80g" in error
    assert "tpu-v4" in error
