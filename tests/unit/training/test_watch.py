"""What the launcher concludes from event files and messages; files and processes are real, the launcher's clock is not.

Each test has one pipeline of two stages whose ranks record here what workers would.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from small_run import inputs, pipeline

from polyreme.layout.owners import buckets
from polyreme.runtime.launch import Failure, Message
from polyreme.schedules.action import Action, parse_action
from polyreme.schedules.lower import lower
from polyreme.specs.events import OP_NUMBERS
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import TextData
from polyreme.specs.plan import Predicted
from polyreme.telemetry.recorder import EventRecorder
from polyreme.training import watch as watch_module
from polyreme.training.watch import LOOK_S, PAUSE_S, STALL_STEPS, StallWatch, is_stopped

FLOOR_S = 10.0
NUM_STEPS = 4
NS = 10**9


@dataclass
class Scene:
    """A watch with a clock that only `wait` moves, and the recorders and processes of two ranks."""

    run_dir: Path
    processes: "list[subprocess.Popen[bytes]]"
    predicted_s: float = 0.1
    now_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        given = inputs([pipeline("a", [3], 2, ScheduleName.GPIPE)], TextData(paths=("unused",)))
        plan = replace(given.plan, predicted=Predicted(step_time_s=(self.predicted_s,) * 3))
        self.recorders = [EventRecorder(self.run_dir / "events" / f"rank-{rank}.bin") for rank in range(2)]
        self.lists = lower(plan, buckets(plan, given.model))
        process_ids = [process.pid for process in self.processes]
        self.watch = StallWatch(plan, given.model, NUM_STEPS, self.run_dir, process_ids, FLOOR_S)

    def begin(self, rank: int, action: Action | str, step: int = 0) -> None:
        one = parse_action(action) if isinstance(action, str) else action
        self.recorders[rank].begin(OP_NUMBERS[one.op], 0, one.stage, one.microbatch, step)

    def whole_step(self, rank: int, step: int) -> None:
        """Record and report a step."""
        for action in self.lists[rank]:
            self.begin(rank, action, step)
            self.recorders[rank].end()
        self.say(rank, type="step", step=step, start_ns=0, stop_ns=NS)

    def say(self, rank: int, **message: Any) -> None:
        spoken: Message = message
        self.watch.heard(rank, spoken)

    def wait(self, seconds: float) -> Failure | None:
        """Look every half second until something is found or the time is over."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            found = self.watch.look()
            if found is not None:
                return found
        return None


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    made = Scene(tmp_path, [subprocess.Popen(sleeper) for _ in range(2)])
    monkeypatch.setattr(watch_module.time, "monotonic_ns", lambda: round(made.now_s * NS))
    with made.watch:
        yield made
    for recorder in made.recorders:
        recorder.close()
    for process in made.processes:
        process.kill()
        process.wait()


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)
    while not is_stopped(process.pid):
        time.sleep(0.01)


def test_a_rank_that_does_not_move_is_found_after_the_floor(scene: Scene) -> None:
    scene.begin(0, "a.0.F0")
    scene.begin(1, "a.1.RA0")
    assert scene.wait(FLOOR_S) is None
    found = scene.wait(1.0)
    assert found is not None
    assert found.message is not None
    assert found.rank == 0
    assert found.message["exception"].startswith("stalled: rank 0 (n/w0) is at a.0.F0 of step 0 since")
    assert [(entry["rank"], entry["waits_for"]) for entry in found.message["waits"]] == [(1, [0])]


def test_steps_that_take_long_extend_the_deadline(scene: Scene) -> None:
    assert scene.watch.deadline_s == FLOOR_S
    for step in range(3):
        scene.say(0, type="step", step=step, start_ns=0, stop_ns=7 * NS)
    assert scene.watch.deadline_s == STALL_STEPS * 7


def test_steps_that_are_expected_to_take_long_extend_the_deadline(tmp_path: Path) -> None:
    assert Scene(tmp_path, [], predicted_s=4.0).watch.deadline_s == STALL_STEPS * 4


def test_before_its_first_action_a_rank_may_take_its_time_unless_it_is_stopped(scene: Scene) -> None:
    scene.begin(1, "a.1.RA0")
    assert scene.wait(5 * FLOOR_S) is None
    stop(scene.processes[0])
    assert scene.wait(FLOOR_S) is None
    found = scene.wait(1.5)
    assert found is not None
    assert found.message is not None
    assert found.rank == 0
    assert "is stopped (SIGSTOP) before its first action of step 0" in found.message["exception"]


def test_a_rank_between_steps_is_watched(scene: Scene) -> None:
    scene.whole_step(0, 0)
    scene.whole_step(1, 0)
    scene.begin(1, "a.1.RA0", step=1)
    found = scene.wait(FLOOR_S + 1)
    assert found is not None
    assert found.message is not None
    assert (found.rank, found.message["step"], found.message["action"]) == (0, 1, "before its first action")


def test_a_rank_that_holds_between_steps_may_take_its_time_and_in_a_step_it_may_not(scene: Scene) -> None:
    for rank in range(2):
        scene.whole_step(rank, 0)
        scene.say(rank, type="holding", step=0)
    assert scene.wait(3 * FLOOR_S) is None
    scene.begin(0, "a.0.F0", step=1)
    found = scene.wait(FLOOR_S + 1)
    assert found is not None
    assert found.rank == 0


def test_after_the_last_step_and_once_done_a_rank_may_take_its_time(scene: Scene) -> None:
    for rank in range(2):
        scene.whole_step(rank, NUM_STEPS - 1)
    assert scene.wait(3 * FLOOR_S) is None
    scene.say(0, type="done")
    stop(scene.processes[0])
    assert scene.wait(3 * FLOOR_S) is None


def test_time_in_which_the_launcher_itself_did_not_run_does_not_count(scene: Scene) -> None:
    scene.begin(0, "a.0.F0")
    scene.begin(1, "a.1.RA0")
    assert scene.wait(FLOOR_S - 1) is None
    scene.now_s += PAUSE_S + FLOOR_S
    assert scene.wait(FLOOR_S) is None
    assert scene.wait(1.0) is not None


def test_a_rank_that_goes_on_is_counted_anew(scene: Scene) -> None:
    for action in ("a.0.F0", "a.0.SA0", "a.0.F1"):
        scene.begin(0, action)
        assert scene.wait(FLOOR_S - 1) is None
        scene.recorders[0].end()


def test_a_process_is_stopped_only_between_the_two_signals(scene: Scene) -> None:
    process = scene.processes[0]
    assert not is_stopped(process.pid)
    stop(process)
    os.kill(process.pid, signal.SIGCONT)
    deadline = time.time() + 5
    while is_stopped(process.pid):
        assert time.time() < deadline
    process.kill()
    process.wait()
    assert not is_stopped(process.pid)


def test_looking_at_64_ranks_costs_less_than_a_hundredth_of_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines = [pipeline(f"p{n}", [2, 4, 5], 16, ScheduleName.ONE_F_ONE_B, base=4 * n) for n in range(16)]
    given = inputs(pipelines, TextData(paths=("unused",)))
    recorders = [EventRecorder(tmp_path / "events" / f"rank-{rank}.bin") for rank in range(64)]
    for recorder in recorders:
        recorder.begin(OP_NUMBERS["STEP"], 0, 0, 0, 0)
    monkeypatch.setattr(watch_module, "LOOK_S", 0.0)
    with StallWatch(given.plan, given.model, NUM_STEPS, tmp_path, [os.getpid()] * 64, 1000.0) as watch:
        started_s = time.process_time()
        for _ in range(50):
            assert watch.look() is None
        look_s = (time.process_time() - started_s) / 50
    for recorder in recorders:
        recorder.close()
    assert look_s < 0.01 * LOOK_S
