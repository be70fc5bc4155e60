"""`polyreme report`, called as the command line calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pretend_run import Pretence, pretend_run

import polyreme
from polyreme.cli.main import main

SMALL = Pretence(steps=3, microbatches=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pretend_run(tmp_path / "runs" / "run-1", SMALL)


def test_summary_is_printed_and_the_page_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run-1  completed\n")
    assert f"report  {folder.resolve() / 'report.html'}\n" in out
    assert "node0/small3" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert (folder / "report.html").is_file()


def test_failed_run_names_rank_action_and_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pretend_run(tmp_path / "run", Pretence(steps=3, failed_rank=2, exception="ValueError: [bold]no"))
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "failed  rank 2 (node0/mid2, stage a.2, mid) in a.2." in out
    assert "ValueError: [bold]no" in out


def test_events_are_one_line_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--events", "--rank", "1"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["rank", "step", "action", "start_s", "duration_ms", "kib"]
    assert len(lines) == (folder / "events/rank-1.bin").stat().st_size // 32
    assert [line.split()[2] for line in lines[:3]] == ["a.1.RA0", "a.1.F0", "a.1.SA0"]
    assert {line.split()[0] for line in lines} == {"1"}
    assert not (folder / "report.html").exists()


def test_json_is_one_object_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (data["run"], data["status"], data["num_steps"]) == ("run-1", "completed", 3)
    assert data["step_time_s"]["predicted"] > 0
    assert len(data["workers"]) == len(data["stages"]) == 4
    assert not (folder / "report.html").exists()


def test_trace_holds_measured_and_predicted_as_processes(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--trace", str(tmp_path / "t.json")]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(names.values())[1] == "predicted"
    assert names[1].startswith("measured, step")
    assert {e["pid"] for e in events if e["ph"] == "X"} == {1, 2}


def test_without_a_run_the_latest_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = pretend_run(folder.parent / "a-later-one", SMALL)
    environment = json.loads((later / "environment.json").read_text())
    environment["started_unix_s"] += 60
    (later / "environment.json").write_text(json.dumps(environment))
    monkeypatch.chdir(folder.parent.parent)
    assert main(["report"]) == 0
    assert capsys.readouterr().out.startswith("a-later-one  completed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "does not exist"),
        (["."], "is no run folder"),
        ([], "holds no run"),
        (["runs/run-1", "--rank", "0"], "add --events"),
        (["runs/run-1", "--events", "--rank", "9"], "ranks with events: 0 to 3"),
        (["runs/run-1", "--trace", "runs/run-1/plan.json/x"], "cannot be written"),
    ],
)
def test_bad_input_is_exit_code_2_with_what_and_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(folder.parent.parent if arguments else folder)
    assert main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_events_into_a_closed_pipe_end_quietly(tmp_path: Path) -> None:
    folder = pretend_run(tmp_path / "run", Pretence(steps=60))
    source = str(Path(polyreme.__file__).parents[1])
    command = f'"{sys.executable}" -m polyreme report "{folder}" --events | head -n 2; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_plan_half_stays_without_torch(folder: Path) -> None:
    code = "import sys; from polyreme.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    source = str(Path(polyreme.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(folder)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
