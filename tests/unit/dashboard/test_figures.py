"""Figures of pretended runs are the pretended ones."""

from pathlib import Path

import pytest
from pretend_run import DEFAULT, STEP_S, Pretence, make_plan, pretend_run

from polyreme.dashboard.figures import Pair, figures, layer_range
from polyreme.dashboard.run_folder import load_run
from polyreme.layout.layers import parameter_count


def test_measured_figures_stand_beside_the_predicted_ones(tmp_path: Path) -> None:
    pretence = Pretence(steps=5, noise=0.0, slower=1.2)
    run = figures(load_run(pretend_run(tmp_path / "run", pretence)))
    plan = make_plan(pretence)
    assert run.step_time_s.predicted == plan.predicted.step_time_s[1]
    assert run.step_time_s.error == pytest.approx(0.2)
    assert run.step_time_interval_s == (plan.predicted.step_time_s[0], plan.predicted.step_time_s[2])
    assert run.tokens_per_s.error == pytest.approx(1 / 1.2 - 1)
    assert (run.num_steps, run.planned_steps) == (5, 5)
    assert run.num_parameters == parameter_count(DEFAULT.model)
    assert [stage.forward_s.error for stage in run.stages] == pytest.approx([0.2] * 4, rel=1e-5)
    assert [worker.layers for worker in run.workers] == ["0-5", "6-9", "10-13", "14-15"]


def test_bubble_is_what_compute_leaves_of_the_step(tmp_path: Path) -> None:
    pretence = Pretence(steps=3, noise=0.0, slower=1.0)
    run = figures(load_run(pretend_run(tmp_path / "run", pretence)))
    plan = make_plan(pretence)
    step_s = plan.predicted.step_time_s[1]
    for worker, stage in zip(run.workers, plan.pipelines[0].stages, strict=True):
        busy_s = pretence.microbatches * (stage.time_s.f + stage.time_s.backward_s) + STEP_S
        assert worker.bubble.measured == pytest.approx(1 - busy_s / step_s, rel=1e-4)
        assert worker.bubble.predicted == pytest.approx(worker.bubble.measured, rel=1e-4)


def test_memory_pairs_sum_the_parts(tmp_path: Path) -> None:
    run = figures(load_run(pretend_run(tmp_path / "run", Pretence(steps=1))))
    worker = run.workers[0]
    assert worker.memory_bytes.predicted == sum(worker.predicted_memory_bytes.values())
    assert worker.memory_bytes.measured == sum(worker.measured_memory_bytes.values())
    assert worker.memory_limit_bytes == 384e6


def test_a_run_without_metrics_takes_its_step_time_from_events(tmp_path: Path) -> None:
    folder = pretend_run(tmp_path / "run", Pretence(steps=4, noise=0.0, slower=1.1))
    (folder / "metrics.jsonl").unlink()
    run = figures(load_run(folder))
    assert run.step_time_s.error == pytest.approx(0.1, abs=1e-3)
    assert run.final_loss is None


def test_an_empty_run_has_no_figures(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    run = figures(load_run(tmp_path))
    assert (run.step_time_s, run.bubble, run.stages, run.workers) == (Pair(None, None), Pair(None, None), (), ())


def test_error_needs_both_sides_and_a_prediction_other_than_zero() -> None:
    assert Pair(2.0, 3.0).error == pytest.approx(0.5)
    assert Pair(None, 3.0).error is None
    assert Pair(2.0, None).error is None
    assert Pair(0.0, 3.0).error is None


def test_layer_ranges_are_shown_with_their_last_layer() -> None:
    assert layer_range((3, 6)) == "3-5"
    assert layer_range((3, 4)) == "3"
