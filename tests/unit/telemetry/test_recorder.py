"""The recorder: what is on disk while it records, after a kill, and after it closed."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polyreme.specs.events import RECORD_BYTES, Event, read_events
from polyreme.telemetry import recorder as recorder_module
from polyreme.telemetry.recorder import CHUNK_BYTES, EventRecorder, NullRecorder

KILLED = """
import os, signal, sys
from pathlib import Path
from polyreme.telemetry.recorder import EventRecorder
recorder = EventRecorder(Path(sys.argv[1]))
for microbatch in range(5):
    recorder.begin(1, 0, 2, microbatch, 9)
    recorder.end()
recorder.begin(2, 0, 2, 4, 9, 77)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_record_is_running_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.bin"
    recorder = EventRecorder(path)
    recorder.begin(1, 2, 3, 4, 5, 6)
    (running,) = read_events(path.read_bytes())
    assert running == Event(running.start_ns, -1, 5, 4, 6, 3, "F", 2)
    recorder.end()
    (ended,) = read_events(path.read_bytes())
    assert ended.duration_ns >= 0
    assert ended._replace(duration_ns=-1) == running
    recorder.close()


def test_closing_cuts_the_unused_space(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.bin"
    recorder = EventRecorder(path)
    for _ in range(3):
        recorder.begin(8, 0, 0, 0, 0)
        recorder.end()
    assert path.stat().st_size == CHUNK_BYTES
    recorder.close()
    recorder.close()
    assert path.stat().st_size == 3 * RECORD_BYTES


def test_closing_at_once_leaves_an_empty_file(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path / "rank-0.bin")
    recorder.close()
    assert (tmp_path / "rank-0.bin").read_bytes() == b""


def test_file_grows_over_several_chunks_without_losing_a_record(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.bin"
    recorder = EventRecorder(path)
    count = 2 * CHUNK_BYTES // RECORD_BYTES + 1
    for number in range(count):
        recorder.begin(1 + number % 8, 0, 0, number, 0)
        recorder.end()
    recorder.close()
    events = list(read_events(path.read_bytes()))
    assert [event.microbatch for event in events] == list(range(count))
    assert all(event.duration_ns >= 0 for event in events)
    assert recorder.num_dropped == 0


def test_numbers_too_large_or_negative_are_clamped(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.bin"
    recorder = EventRecorder(path)
    recorder.begin(1, 2**40, 2**40, 2**40, -3, 2**40)
    recorder.end()
    recorder.close()
    (event,) = read_events(path.read_bytes())
    assert event[2:] == (0, 2**32 - 1, 2**32 - 1, 2**16 - 1, "F", 255)


def test_last_record_of_a_killed_process_is_what_it_was_doing(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.bin"
    source = Path(recorder_module.__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], env={**os.environ, "PYTHONPATH": str(source)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    events = list(read_events(path.read_bytes()))
    assert len(events) == 6
    assert all(event.duration_ns >= 0 for event in events[:5])
    assert events[5][1:] == (-1, 9, 4, 77, 2, "B", 0)


def test_full_disk_stops_the_recording_and_not_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def full(*_: object) -> int:
        calls.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder_module.os, "pwrite", full)
    recorder = EventRecorder(tmp_path / "rank-0.bin")
    for _ in range(3):
        recorder.begin(1, 0, 0, 0, 0)
        recorder.end()
    recorder.close()
    assert recorder.num_dropped == 3
    assert len(calls) == 1
    assert (tmp_path / "rank-0.bin").read_bytes() == b""


def test_recording_after_close_is_dropped(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path / "rank-0.bin")
    recorder.begin(1, 0, 0, 0, 0)
    recorder.close()
    recorder.begin(1, 0, 0, 0, 0)
    recorder.end()
    assert recorder.num_dropped == 1
    assert (tmp_path / "rank-0.bin").stat().st_size == RECORD_BYTES


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "rank-0.bin").write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        EventRecorder(tmp_path / "rank-0.bin")
    assert (tmp_path / "rank-0.bin").read_bytes() == b"kept"


def test_null_recorder_takes_the_same_calls() -> None:
    recorder = NullRecorder()
    recorder.begin(1, 0, 0, 0, 0, 0)
    recorder.end()
    recorder.close()
