"""Workers that are killed or raise at any action: the run ends in two seconds, names it, leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gradient_worker import dying_main
from small_run import alive, inputs, pipeline, write_text

from polyreme.errors import DivergedError, OutOfDeviceMemoryError, PolyremeError, WorkerLostError
from polyreme.layout.owners import buckets
from polyreme.runtime.faults import Fault, FaultKind
from polyreme.runtime.launch import Failure, Workers
from polyreme.schedules.action import Action, Op
from polyreme.schedules.lower import lower
from polyreme.specs.fields import ScheduleName
from polyreme.specs.io import save
from polyreme.specs.job import TextData
from polyreme.telemetry.reading import read_event_log
from polyreme.training.run import run
from polyreme.training.runnable import Inputs
from polyreme.training.settings import WorkerSettings

STEP = 1
SUPPORT = Path(__file__).parents[1] / "support"


def three_stages(tmp_path: Path, **changes: object) -> Inputs:
    data = write_text(tmp_path / "text")
    changes = {"steps": 3, **changes}
    return inputs([pipeline("a", [2, 4], 4, ScheduleName.ONE_F_ONE_B)], data, **changes)  # type: ignore[arg-type]


def all_places() -> list[tuple[int, Action]]:
    """(rank, action) for every action of every rank of a three-stage plan."""
    given = inputs([pipeline("a", [2, 4], 4, ScheduleName.ONE_F_ONE_B)], TextData(paths=("unused",)))
    lists = lower(given.plan, buckets(given.plan, given.model))
    return [(rank, action) for rank, actions in sorted(lists.items()) for action in actions]


def sampled_places() -> list[tuple[int, Action]]:
    """One place per kind of action, spread over the ranks."""
    found: dict[Op, tuple[int, Action]] = {}
    for rank, action in sorted(all_places(), key=lambda place: (place[0] + len(place[1].op)) % 3):
        found.setdefault(action.op, (rank, action))
    return list(found.values())


def check_fault(tmp_path: Path, rank: int, action: Action, kind: FaultKind) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(WorkerLostError) as caught:
        run(three_stages(tmp_path), run_dir, fault=Fault(rank, STEP, action, kind))
    ended_ns = time.monotonic_ns()
    struck = read_event_log(run_dir).last_events()[rank]
    assert (ended_ns - struck.start_ns) / 1e9 < 2.0
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    failure = result["failure"]
    assert (failure["rank"], failure["action"], failure["step"]) == (rank, str(action), STEP)
    assert failure["worker"] == f"n/w{rank}"
    assert result["exit_code"] == 4
    assert result["status"] == "failed"
    assert ("SIGKILL" if kind is FaultKind.KILL else "InjectedFaultError") in failure["exception"]
    assert f"rank      {rank}" in str(caught.value)
    assert alive(run_dir) == []


@pytest.mark.parametrize("kind", [FaultKind.RAISE, FaultKind.KILL])
@pytest.mark.parametrize(("rank", "action"), sampled_places(), ids=str)
def test_a_fault_ends_the_run_in_two_seconds_and_names_its_rank(
    rank: int, action: Action, kind: FaultKind, tmp_path: Path
) -> None:
    check_fault(tmp_path, rank, action, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.RAISE, FaultKind.KILL])
@pytest.mark.parametrize(("rank", "action"), all_places(), ids=str)
def test_a_fault_at_any_action_ends_the_run_in_two_seconds_and_names_its_rank(
    rank: int, action: Action, kind: FaultKind, tmp_path: Path
) -> None:
    check_fault(tmp_path, rank, action, kind)


def test_a_worker_that_dies_before_it_has_joined_ends_the_run(tmp_path: Path) -> None:
    given, run_dir = three_stages(tmp_path), tmp_path / "run"
    run_dir.mkdir()
    save(run_dir / "plan.json", given.plan)
    save(run_dir / "model.json", given.model)
    save(run_dir / "config.json", given.job)
    save(run_dir / "cluster.json", given.cluster)
    settings = WorkerSettings(run_dir=str(run_dir), data_base=".", num_cores=2)
    started = time.monotonic()
    with Workers(dying_main, [settings.to_message()] * 3, "polyreme.training.preload") as workers:
        (run_dir / "processes.json").write_text(json.dumps({"workers": workers.process_ids}), encoding="utf-8")
        *_, failure = workers.messages()
    assert time.monotonic() - started < 5
    assert failure == Failure(1, -signal.SIGKILL, None)
    assert alive(run_dir) == []


def test_a_device_that_would_hold_too_much_is_named_with_its_parts(tmp_path: Path) -> None:
    with pytest.raises(OutOfDeviceMemoryError, match=r"n/w\d \((fast|slow)\) holds .*weights"):
        run(three_stages(tmp_path, memory_bytes=100e3), tmp_path / "run")
    assert alive(tmp_path / "run") == []
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["exit_code"] == OutOfDeviceMemoryError.exit_code
    assert result["failure"]["worker"] in result["failure"]["exception"]


def test_a_loss_or_gradient_that_is_not_finite_is_called_divergence(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"the (loss|gradient norm) of step"):
        run(three_stages(tmp_path, learning_rate=1e30, steps=20), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["exit_code"] == DivergedError.exit_code
    assert result["failure"]["rank"] == 2, "the head's worker is the one that sees it"
    assert alive(tmp_path / "run") == []


LAUNCHER = """
import contextlib
import json
import sys
import time
from pathlib import Path
from small_run import inputs, pipeline, write_text
from polyreme.runtime.launch import Workers
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import TextData
from polyreme.training.run import run
folder, late_s = Path(sys.argv[1]), float(sys.argv[2])
def tell(self, message):
    for pipe in self._pipes:
        with contextlib.suppress(OSError):
            pipe.send_bytes(json.dumps(message).encode())
        time.sleep(late_s)
if late_s:
    Workers.tell = tell
given = inputs([pipeline("a", [2, 4], 4, ScheduleName.ONE_F_ONE_B)], write_text(folder / "text"), steps=100000)
if __name__ == "__main__":
    result = run(given, folder / "run")
    sys.exit(130 if result.interrupted else 0)
"""


def start_launcher(tmp_path: Path, late_s: float = 0.0) -> "subprocess.Popen[bytes]":
    """A launcher in a process of its own, once its workers have finished a step.

    Each worker hears from it `late_s` after the one before, as on a busy machine.
    """
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER, encoding="utf-8")
    launcher = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), str(late_s)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])},
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert launcher.poll() is None, "the launcher ended early"
        assert time.monotonic() < deadline, "no step in a minute"
        time.sleep(0.05)
    return launcher


def test_workers_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = start_launcher(tmp_path)
    assert len(alive(tmp_path / "run")) == 3
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 2
    while alive(tmp_path / "run") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive(tmp_path / "run") == []


@pytest.mark.parametrize("late_s", [0.0, 0.2], ids=["at once", "one after the other"])
def test_ctrl_c_stops_all_workers_after_one_and_the_same_step(late_s: float, tmp_path: Path) -> None:
    launcher = start_launcher(tmp_path, late_s)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=30) == 130
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "interrupted"
    log = read_event_log(tmp_path / "run")
    assert {event.step for event in log.last_events().values()} == {result["steps"] - 1}
    assert (tmp_path / "run" / "weights" / "model.safetensors.index.json").exists()


def test_workers_listen_on_loopback_only(tmp_path: Path) -> None:
    launcher = start_launcher(tmp_path)
    inodes = {
        str(link.readlink())
        for process_id in alive(tmp_path / "run")
        for link in Path(f"/proc/{process_id}/fd").iterdir()
        if link.is_symlink()
    }
    listening = []
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "00000000000000000000000001000000")):
        for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.append(fields[1])
                assert fields[1].split(":")[0] == loopback, fields[1]
    launcher.kill()
    launcher.wait()
    assert listening, "the rendezvous was not found"


def test_an_error_never_hides_that_inputs_do_not_fit_each_other(tmp_path: Path) -> None:
    given = three_stages(tmp_path)
    other = inputs([pipeline("a", [2, 4], 5, ScheduleName.GPIPE)], given.job.data)
    mixed = Inputs(plan=other.plan, model=given.model, cluster=given.cluster, job=given.job, base=given.base)
    with pytest.raises(PolyremeError, match="the plan is for a batch"):
        run(mixed, tmp_path / "run")
