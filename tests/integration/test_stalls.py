"""Workers that stop or hang: the run ends soon after its deadline, says who waits for whom, and leaves nothing."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import alive, inputs, pipeline, write_text

from polyreme.errors import WorkerLostError
from polyreme.layout.owners import buckets
from polyreme.runtime.faults import Fault, FaultKind
from polyreme.schedules.action import Action, parse_action
from polyreme.schedules.lower import lower
from polyreme.specs.device import LinkKind
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import TextData
from polyreme.specs.plan import Predicted
from polyreme.telemetry.reading import read_event_log
from polyreme.training.run import Inputs, run
from polyreme.training.watch import STALL_FLOOR_S

FLOOR_S = 2.0
LATE_S = 2.0
STEP = 1
KINDS = [FaultKind.STOP, FaultKind.HANG]


def made_of(names: str, data: TextData, steps: int = 3) -> Inputs:
    """`three`: one pipeline of three stages. `two`: one of two stages and one of one, which reduce their gradients."""
    one_f_one_b = ScheduleName.ONE_F_ONE_B
    three = [pipeline("a", [2, 4], 4, one_f_one_b)]
    two = [pipeline("a", [3], 2, one_f_one_b), pipeline("b", [], 2, one_f_one_b, base=2)]
    given = inputs(three if names == "three" else two, data, steps=steps)
    return replace(given, plan=replace(given.plan, predicted=Predicted(step_time_s=(0.1, 0.1, 0.1))))


def all_places() -> list[tuple[str, int, Action]]:
    found = []
    for names in ("three", "two"):
        given = made_of(names, TextData(paths=("unused",)))
        lists = lower(given.plan, buckets(given.plan, given.model))
        found += [(names, rank, action) for rank, actions in sorted(lists.items()) for action in actions]
    return found


SAMPLED = [
    ("three", 0, "a.0.F0"),
    ("three", 0, "a.0.RG3"),
    ("three", 1, "a.1.RA2"),
    ("three", 1, "a.1.SG1"),
    ("three", 2, "a.2.B3"),
    ("three", 2, "STEP"),
    ("two", 2, "b.0.F1"),
    ("two", 0, "a.0.SA1"),
]


def check_stall(
    tmp_path: Path, names: str, rank: int, action: Action, kind: FaultKind, floor_s: float = FLOOR_S
) -> None:
    run_dir, given = tmp_path / "run", made_of(names, write_text(tmp_path / "text"))
    with pytest.raises(WorkerLostError) as caught:
        run(given, run_dir, fault=Fault(rank, STEP, action, kind), stall_floor_s=floor_s)
    ended_ns = time.monotonic_ns()
    struck = read_event_log(run_dir).last_events()[rank]
    assert floor_s < (ended_ns - struck.start_ns) / 1e9 < floor_s + LATE_S
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    assert (result["status"], result["exit_code"]) == ("failed", 4)
    assert alive(run_dir) == []
    failure = result["failure"]
    assert failure["exception"].startswith("stalled: ")
    if action.op == "REDUCE" and kind is FaultKind.HANG:
        return  # all owners are in the reduction: nobody can see which of them does not take part
    assert (failure["rank"], failure["action"], failure["step"]) == (rank, str(action), STEP)
    state = "is stopped (SIGSTOP)" if kind is FaultKind.STOP else "is"
    assert f"rank {rank} (n/w{rank}) {state} at {action} of step {STEP} since" in str(caught.value)
    waits = {entry["rank"]: entry["waits_for"] for entry in failure["waits"]}
    assert set(waits) == set(range(3)) - {rank}, "all others wait, and the chain of each ends at the one at fault"
    assert rank in [target for targets in waits.values() for target in targets]
    for waiter in waits:
        assert f"rank {waiter} (n/w{waiter}) waits for" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("names", "rank", "action"), SAMPLED)
def test_a_stall_ends_the_run_soon_and_says_who_waits_for_whom(
    names: str, rank: int, action: str, kind: FaultKind, tmp_path: Path
) -> None:
    check_stall(tmp_path, names, rank, parse_action(action), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stall_in_a_reduction_ends_the_run(kind: FaultKind, tmp_path: Path) -> None:
    check_stall(tmp_path, "two", 2, parse_action("REDUCE0"), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("names", "rank", "action"), all_places(), ids=str)
def test_a_stall_at_any_action_ends_the_run(
    names: str, rank: int, action: Action, kind: FaultKind, tmp_path: Path
) -> None:
    check_stall(tmp_path, names, rank, action, kind)


@pytest.mark.slow
def test_a_stall_is_noticed_within_the_default_of_ten_seconds(tmp_path: Path) -> None:
    assert STALL_FLOOR_S + LATE_S <= 10.0
    check_stall(tmp_path, "three", 1, parse_action("a.1.F1"), FaultKind.STOP, STALL_FLOOR_S)


def test_a_rank_that_waits_long_for_others_that_move_is_not_ended(tmp_path: Path) -> None:
    given, run_dir = made_of("three", write_text(tmp_path / "text"), steps=1), tmp_path / "run"
    slow = LinkKind(name="wire", bandwidth_bytes_per_s=1e9, latency_s=0.6)
    given = replace(given, cluster=replace(given.cluster, link_kinds=(slow,)))
    floor_s = 1.8
    assert len(run(given, run_dir, stall_floor_s=floor_s).steps) == 1
    longest_ns = {rank: max(records["duration_ns"]) for rank, records in read_event_log(run_dir).records.items()}
    assert longest_ns[0] / 1e9 > floor_s, "a gradient crosses four links before the first rank has it"


def test_actions_that_take_longer_than_the_floor_may_if_steps_are_expected_to(tmp_path: Path) -> None:
    given, run_dir = made_of("three", write_text(tmp_path / "text"), steps=1), tmp_path / "run"
    slow = LinkKind(name="wire", bandwidth_bytes_per_s=1e9, latency_s=0.6)
    plan = replace(given.plan, predicted=Predicted(step_time_s=(4.0, 4.0, 4.0)))
    given = replace(given, plan=plan, cluster=replace(given.cluster, link_kinds=(slow,)))
    assert len(run(given, run_dir, stall_floor_s=0.0).steps) == 1


def test_a_worker_that_is_continued_in_time_goes_on(tmp_path: Path) -> None:
    given, run_dir = made_of("three", write_text(tmp_path / "text"), steps=6), tmp_path / "run"
    fault = Fault(1, STEP, parse_action("a.1.F1"), FaultKind.STOP)

    def proceed() -> None:
        process_id = json.loads((run_dir / "processes.json").read_text(encoding="utf-8"))["workers"][1]
        os.kill(process_id, signal.SIGCONT)

    started: list[threading.Timer] = []

    def on_step(metrics: object) -> None:
        if not started:
            started.append(threading.Timer(1.5, proceed))
            started[0].start()

    assert len(run(given, run_dir, on_step, fault=fault, stall_floor_s=4.0).steps) == 6
