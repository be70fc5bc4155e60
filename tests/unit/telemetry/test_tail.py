"""Following an event file while a recorder writes it."""

import errno
import os
from pathlib import Path

import pytest

from polyreme.specs.events import RECORD_BYTES
from polyreme.telemetry.recorder import CHUNK_BYTES, EventRecorder
from polyreme.telemetry.tail import EventTail


def test_the_last_record_is_seen_at_every_stage_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.bin"
    tail = EventTail(path)
    assert tail.last() is None, "there is no file yet"
    recorder = EventRecorder(path)
    assert tail.last() is None, "there is no record yet"
    recorder.begin(1, 0, 2, 3, 4)
    running = tail.last()
    assert running is not None
    assert (running.op, running.stage, running.microbatch, running.step, running.duration_ns) == ("F", 2, 3, 4, -1)
    recorder.end()
    ended = tail.last()
    assert ended is not None
    assert ended.duration_ns >= 0
    recorder.close()
    assert tail.last() == ended, "the file was cut"
    tail.close()


@pytest.mark.parametrize("num_between_looks", [1, 127, 128, 129, 5000])
def test_the_last_record_is_found_however_many_were_written_since(num_between_looks: int, tmp_path: Path) -> None:
    recorder, tail = EventRecorder(tmp_path / "rank-0.bin"), EventTail(tmp_path / "rank-0.bin")
    for look in range(1, 4):
        for _ in range(num_between_looks):
            recorder.begin(2, 0, 0, look, 0)
            recorder.end()
        recorder.begin(1, 0, 0, look, 7)
        last = tail.last()
        recorder.end()
        assert last is not None
        assert (last.op, last.microbatch, last.step, last.duration_ns) == ("F", look, 7, -1)
        assert not tail.may_have_ended
    recorder.close()
    tail.close()


def test_a_recorder_that_found_the_disk_full_may_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, tail = EventRecorder(tmp_path / "rank-0.bin"), EventTail(tmp_path / "rank-0.bin")
    for _ in range(CHUNK_BYTES // RECORD_BYTES):
        recorder.begin(1, 0, 0, 0, 0)
        recorder.end()

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "pwrite", no_space)
    recorder.begin(1, 0, 0, 0, 1)
    last = tail.last()
    assert last is not None
    assert last.step == 0
    assert tail.may_have_ended
    recorder.close()
    tail.close()
