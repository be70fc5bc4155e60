"""The trace file, read back as any viewer reads it."""

import json
from pathlib import Path

import pytest

from polyreme.errors import InputError
from polyreme.telemetry.trace import TraceGroup, write_trace, write_trace_groups

SPANS = [(0, "a.0.F0", "F", 0.0, 0.25), (1, "a.1.RA0", "RA", 0.1, 0.1000005)]


def test_spans_become_complete_events_in_microseconds(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", {0: "rank 0", 1: 'rank "1"'}, SPANS)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert [(e["name"], e["cat"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in complete] == [
        ("a.0.F0", "F", 1, 0, 0.0, 250_000.0),
        ("a.1.RA0", "RA", 1, 1, 100_000.0, 0.5),
    ]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "rank 0", 1: 'rank "1"'}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert order == {0: 0, 1: 1}


def test_each_group_is_a_process_of_its_own(tmp_path: Path) -> None:
    groups = [TraceGroup(name, {0: "rank 0"}, SPANS[:1]) for name in ("measured", "predicted")]
    write_trace_groups(tmp_path / "t.json", groups)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        1: "measured",
        2: "predicted",
    }
    assert [e["pid"] for e in events if e["ph"] == "X"] == [1, 2]


def test_a_trace_without_spans_is_valid(tmp_path: Path) -> None:
    write_trace_groups(tmp_path / "t.json", [])
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []


@pytest.mark.parametrize("times", [(0.0, float("nan")), (0.0, float("inf")), (1.0, 0.5)])
def test_a_bad_time_is_refused_and_the_old_file_stays(tmp_path: Path, times: tuple[float, float]) -> None:
    (tmp_path / "t.json").write_text("old")
    with pytest.raises(ValueError, match=r"a\.0\.F0"):
        write_trace(tmp_path / "t.json", {0: "rank 0"}, [(0, "a.0.F0", "F", *times)])
    assert (tmp_path / "t.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_a_path_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(tmp_path / "file" / "t.json", {}, [])
