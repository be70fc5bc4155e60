"""What is measured from events: which step is shown, medians per stage, shares per rank."""

import math
from pathlib import Path

import pytest
from pretend_run import Pretence, make_plan, pretend_run

from polyreme.specs.events import RECORD
from polyreme.telemetry.measured import measure
from polyreme.telemetry.reading import EventLog, parse_records, read_event_log

F, B, RECV, STEP, INPUT, WEIGHT, EVAL = 1, 2, 4, 8, 9, 10, 12
MS = 1_000_000


def log_of(*ranks: list[tuple[int, int, int, int]]) -> EventLog:
    """Records of (op, step, start ms, duration ms; -1: running)."""
    contents = [
        b"".join(
            RECORD.pack(10**9 + start * MS, length * MS if length >= 0 else -1, step, 0, 0, rank, op, 0)
            for op, step, start, length in events
        )
        for rank, events in enumerate(ranks)
    ]
    return EventLog({rank: parse_records(content)[0] for rank, content in enumerate(contents)}, ())


def test_the_step_with_the_median_time_is_shown_and_the_first_left_out() -> None:
    steps = [(0, 0, 90), (1, 100, 10), (2, 200, 30), (3, 300, 20)]
    measured = measure(
        log_of(
            [
                event
                for step, start, time in steps
                for event in ((F, step, start, time - 1), (STEP, step, start + time - 1, 1))
            ]
        )
    )
    assert measured.timeline is not None
    assert measured.timeline.step == 3
    assert measured.timeline.duration_s == pytest.approx(0.020)
    assert measured.step_times_s == pytest.approx({0: 0.090, 1: 0.010, 2: 0.030, 3: 0.020})


def test_the_only_step_is_shown_although_it_is_the_first() -> None:
    measured = measure(log_of([(F, 0, 0, 4), (STEP, 0, 4, 2)]))
    assert measured.timeline is not None
    assert (measured.timeline.step, measured.timeline.complete) == (0, True)


def test_a_step_starts_with_its_first_action_that_is_no_receive() -> None:
    waiting = [(RECV, 0, 1, 8), (F, 0, 9, 2), (STEP, 0, 11, 1)]
    measured = measure(log_of([(F, 0, 5, 4), (STEP, 0, 9, 1)], waiting))
    assert measured.timeline is not None
    spans = [(s.rank, s.op, round(s.start_s * 1e3), round(s.stop_s * 1e3)) for s in measured.timeline.spans]
    assert spans == [(0, "F", 0, 4), (0, "STEP", 4, 5), (1, "RA", 0, 4), (1, "F", 4, 6), (1, "STEP", 6, 7)]
    assert measured.timeline.duration_s == pytest.approx(0.007)


def test_waiting_for_the_next_step_does_not_lengthen_it() -> None:
    first = [(F, step, 10 * step, 5) for step in range(4)]
    updates = [(STEP, step, 10 * step + 9, 1) for step in range(4)]
    second = [event for step in range(4) for event in ((RECV, step, 10 * step - 4, 9), (F, step, 10 * step + 5, 1))]
    measured = measure(log_of([*first, *updates], [*second, *[(STEP, step, 10 * step + 6, 0) for step in range(4)]]))
    assert measured.step_times_s == pytest.approx(dict.fromkeys(range(4), 0.010))


def test_a_step_in_which_all_only_wait_is_not_drawn() -> None:
    measured = measure(log_of([(F, 0, 0, 4), (STEP, 0, 4, 1), (RECV, 1, 5, -1)]))
    assert measured.cut_off is None


def test_busy_share_counts_compute_and_not_waiting() -> None:
    measured = measure(log_of([(F, 0, 0, 4), (RECV, 0, 4, 4), (STEP, 0, 8, 2)]))
    assert measured.busy_share == pytest.approx({0: 0.6})
    assert measured.bubble_share == pytest.approx({0: 0.4})
    assert measured.mean_bubble == pytest.approx(0.4)


def test_a_step_that_one_rank_did_not_end_is_not_complete() -> None:
    measured = measure(log_of([(F, 0, 0, 4), (STEP, 0, 4, 1)], [(F, 0, 0, 4), (STEP, 0, 4, -1)]))
    assert measured.step_times_s == {}
    assert measured.mean_bubble is None
    assert measured.timeline is None
    assert measured.cut_off is not None
    assert not measured.cut_off.complete
    cut = measured.cut_off.spans[-1]
    assert (cut.op, cut.ended) == ("STEP", False)
    assert cut.stop_s == pytest.approx(0.005)


def test_a_failed_run_shows_its_median_step_and_the_one_cut_off(tmp_path: Path) -> None:
    measured = measure(read_event_log(pretend_run(tmp_path / "run", Pretence(steps=4, failed_rank=2))))
    assert measured.timeline is not None
    assert measured.timeline.step in (1, 2)
    assert measured.cut_off is not None
    assert measured.cut_off.step == 3
    assert any(span.rank == 2 and not span.ended for span in measured.cut_off.spans)


def test_no_events_measure_nothing() -> None:
    measured = measure(EventLog({}, ()))
    assert measured.timeline is None
    assert measured.cut_off is None
    assert not measured.stages


def test_a_backward_in_two_halves_takes_the_time_of_both_and_counts_as_busy() -> None:
    step = [(F, 0, 0, 4), (INPUT, 0, 4, 3), (WEIGHT, 0, 10, 2), (INPUT, 0, 12, 5), (WEIGHT, 0, 17, 2), (STEP, 0, 19, 1)]
    measured = measure(log_of(step))
    assert measured.stages[0, 0].backward_s == pytest.approx(0.004 + 0.002)
    assert measured.busy_share[0] == pytest.approx(17 / 20)


def test_an_evaluation_is_no_part_of_its_step() -> None:
    measured = measure(log_of([(F, 0, 0, 4), (B, 0, 4, 3), (STEP, 0, 7, 1), (EVAL, 0, 8, 50), (F, 1, 60, 4)]))
    assert measured.step_times_s == pytest.approx({0: 0.008})


def test_stage_medians_are_the_pretended_times(tmp_path: Path) -> None:
    pretence = Pretence(steps=6, slower=1.25, noise=0.0)
    measured = measure(read_event_log(pretend_run(tmp_path / "run", pretence)))
    stages = make_plan(pretence).pipelines[0].stages
    assert sorted(measured.stages) == [(0, index) for index in range(4)]
    for index, stage in enumerate(stages):
        median = measured.stages[0, index]
        assert median.forward_s == pytest.approx(1.25 * stage.time_s.f, rel=1e-6)
        assert median.backward_s == pytest.approx(1.25 * stage.time_s.backward_s, rel=1e-6)


def test_pipelines_of_one_run_are_kept_apart(tmp_path: Path) -> None:
    measured = measure(read_event_log(pretend_run(tmp_path / "run", Pretence(steps=2, pipelines=2))))
    assert sorted(measured.stages) == [(pipeline, stage) for pipeline in (0, 1) for stage in range(4)]
    assert all(math.isfinite(share) and 0 < share < 1 for share in measured.busy_share.values())
