"""Reading event files in every state a run can leave them in."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretend_run import Pretence, pretend_run

from polyreme.specs.events import RECORD, RECORD_BYTES, read_events
from polyreme.telemetry.reading import parse_records, read_event_log

GOOD = RECORD.pack(1000, 50, 0, 1, 0, 2, 1, 0)


def test_events_are_the_same_as_by_the_record_format(tmp_path: Path) -> None:
    run = pretend_run(tmp_path / "run", Pretence(steps=2))
    log = read_event_log(run)
    assert log.faults == ()
    assert sorted(log.records) == [0, 1, 2, 3]
    for rank in log.records:
        content = (run / f"events/rank-{rank}.bin").read_bytes()
        assert list(log.events(rank)) == list(read_events(content))
    assert log.num_events == sum((run / f"events/rank-{rank}.bin").stat().st_size for rank in range(4)) // RECORD_BYTES


def test_last_event_of_a_failed_run_is_running_on_the_failed_rank(tmp_path: Path) -> None:
    log = read_event_log(pretend_run(tmp_path / "run", Pretence(steps=3, failed_rank=1)))
    assert log.faults == ()
    assert log.last_events()[1].duration_ns == -1
    assert log.last_events()[1].step == 2


def test_missing_events_folder_is_a_fault_and_no_error(tmp_path: Path) -> None:
    log = read_event_log(tmp_path)
    assert not log.records
    assert log.faults[0].startswith("events/ cannot be read")


def test_other_files_in_the_events_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events/notes.txt").write_text("hello")
    (tmp_path / "events/rank-7.bin").mkdir()
    log = read_event_log(tmp_path)
    assert not log.records
    assert log.faults == ("events/rank-7.bin cannot be read: Is a directory",)


@pytest.mark.parametrize(
    ("content", "count", "problem"),
    [
        (b"", 0, None),
        (bytes(640), 0, None),
        (GOOD * 3 + bytes(96), 3, None),
        (GOOD * 2 + bytes(7), 2, None),
        (GOOD * 2 + GOOD[:9], 2, "ends in the middle of record 2"),
        (GOOD + bytes(32) + GOOD, 1, "record 1 is damaged; 2 of 3 records are left out"),
        (GOOD + RECORD.pack(1, 1, 0, 0, 0, 0, 99, 0), 1, "record 1 is damaged; 1 of 2 records are left out"),
        (GOOD + RECORD.pack(1, -2, 0, 0, 0, 0, 1, 0), 1, "record 1 is damaged; 1 of 2 records are left out"),
        (GOOD + RECORD.pack(-1, 1, 0, 0, 0, 0, 1, 0), 1, "record 1 is damaged; 1 of 2 records are left out"),
        (GOOD + RECORD.pack(2**62, 2**62, 0, 0, 0, 0, 1, 0), 1, "record 1 is damaged; 1 of 2 records are left out"),
    ],
)
def test_records_end_at_unused_space_or_at_damage(content: bytes, count: int, problem: str | None) -> None:
    records, found = parse_records(content)
    assert len(records) == count
    assert found == problem


@given(st.binary(max_size=200), st.integers(0, 4))
def test_any_bytes_are_read_without_an_error(noise: bytes, good: int) -> None:
    records, _ = parse_records(GOOD * good + noise)
    assert len(records) >= good
