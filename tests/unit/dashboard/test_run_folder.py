"""Loading run folders, whole and damaged."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pretend_run import Pretence, pretend_run

from polyreme.dashboard.report_page import render
from polyreme.dashboard.run_folder import load_run
from polyreme.errors import InputError

SMALL = Pretence(steps=3, microbatches=2)
SPECS = {"config.json": "job", "model.json": "model", "cluster.json": "cluster", "plan.json": "plan"}


def test_a_completed_run_is_loaded_without_problems(tmp_path: Path) -> None:
    view = load_run(pretend_run(tmp_path / "run-1", SMALL))
    assert view.problems == ()
    assert (view.run_id, view.status, view.exit_code, view.failure) == ("run-1", "completed", 0, None)
    assert [line.step for line in view.metrics] == [0, 1, 2]
    assert view.prediction is not None
    assert view.plan is not None
    assert view.prediction.plan == view.plan.digest
    assert view.memory[3].peak_bytes.keys() == {"weights", "gradients", "optimizer", "activations"}
    assert view.environment["seed"] == "17"
    assert view.environment["command"] == "polyreme train 'my job.yaml'"
    assert view.logs == tuple(f"logs/rank-{rank}.log" for rank in range(4))


def test_a_failed_run_names_its_cause_and_the_end_of_the_log(tmp_path: Path) -> None:
    view = load_run(pretend_run(tmp_path / "run", Pretence(steps=3, failed_rank=1)))
    assert view.problems == ()
    assert view.status == "failed"
    assert view.failure is not None
    assert (view.failure.rank, view.failure.step, view.failure.log) == ("1", "2", "logs/rank-1.log")
    assert view.failure.exception in view.failure.log_tail


def test_a_killed_run_is_unfinished_and_its_torn_last_line_is_no_problem(tmp_path: Path) -> None:
    view = load_run(pretend_run(tmp_path / "run", Pretence(steps=3, killed=True)))
    assert (view.status, view.problems) == ("unfinished", ())
    assert len(view.metrics) == 3


@pytest.mark.parametrize("name", [*SPECS, "prediction.json", "environment.json", "metrics.jsonl", "memory.json"])
def test_a_missing_file_is_named_and_the_rest_is_shown(tmp_path: Path, name: str) -> None:
    run = pretend_run(tmp_path / "run", SMALL)
    (run / name).unlink()
    view = load_run(run)
    assert view.problems == (f"{name}: does not exist",)
    assert "<h1>" in render(view)


@pytest.mark.parametrize("name", [*SPECS, "prediction.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 3}'])
def test_a_damaged_spec_is_named_and_the_rest_is_shown(tmp_path: Path, name: str, content: bytes) -> None:
    run = pretend_run(tmp_path / "run", SMALL)
    (run / name).write_bytes(content)
    view = load_run(run)
    assert len(view.problems) == 1
    assert view.problems[0].startswith(f"{name}: ")
    assert "<h1>" in render(view)


def test_a_prediction_of_another_plan_is_named(tmp_path: Path) -> None:
    run = pretend_run(tmp_path / "run", SMALL)
    other = pretend_run(tmp_path / "other", Pretence(steps=1, microbatches=3))
    (run / "prediction.json").write_bytes((other / "prediction.json").read_bytes())
    view = load_run(run)
    assert any(problem.startswith("prediction.json: was made for plan") for problem in view.problems)


def test_lines_that_are_no_metrics_are_counted(tmp_path: Path) -> None:
    run = pretend_run(tmp_path / "run", SMALL)
    lines = ["[]", '{"step": "a"}', "nonsense", '{"step": 5, "loss": NaN, "step_time_s": 1e999, "tokens": null}', ""]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    view = load_run(run)
    assert view.problems == ("metrics.jsonl: 3 unreadable lines are left out",)
    (line,) = view.metrics
    assert (line.step, line.tokens) == (5, 0)
    assert math.isnan(line.loss)
    assert math.isnan(line.step_time_s)


@pytest.mark.parametrize("log", ["../secret", "javascript:alert(1)", "/etc/passwd", 7, None, "logs/rank-9.log"])
def test_a_log_outside_the_run_is_not_linked(tmp_path: Path, log: object) -> None:
    run = pretend_run(tmp_path / "run", Pretence(steps=2, microbatches=2, failed_rank=0))
    result = json.loads((run / "result.json").read_text())
    result["failure"]["log"] = log
    (run / "result.json").write_text(json.dumps(result))
    view = load_run(run)
    assert view.failure is not None
    assert (view.failure.log, view.failure.log_tail) == ("", "")


@pytest.mark.parametrize("what", ["missing", "file", "empty folder"])
def test_what_is_no_run_folder_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "file":
        path.write_text("")
    elif what == "empty folder":
        path.mkdir()
    with pytest.raises(InputError) as raised:
        load_run(path)
    assert raised.value.exit_code == 2


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretend_run(tmp_path_factory.mktemp("runs") / "run", Pretence(steps=2, microbatches=2, failed_rank=1))


FILES = [*SPECS, "prediction.json", "environment.json", "metrics.jsonl", "result.json", "events/rank-1.bin"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), position=st.floats(0, 1), noise=st.binary(max_size=6), cut=st.booleans())
def test_any_damage_to_any_file_still_gives_a_page(
    whole_run: Path, name: str, position: float, noise: bytes, cut: bool
) -> None:
    path = whole_run / name
    original = path.read_bytes()
    at = int(position * len(original))
    try:
        path.write_bytes(original[:at] + noise + (b"" if cut else original[at + len(noise) :]))
        assert render(load_run(whole_run)).endswith("</html>\n")
    finally:
        path.write_bytes(original)
