"""The command line's own errors."""

import re
from pathlib import Path

import pytest

from polyreme.cli.main import main

SEED = Path(__file__).parents[3] / "examples" / "seed-cluster"


def code_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pln"], "did you mean plan?"),
        (["nonsense"], "commands: demo"),
        ([], "required"),
        (["devices", "--precison", "fp16"], "did you mean --precision?"),
        (["plan"], "give the job once"),
        (["plan", "nowhere.yaml"], "nowhere.yaml: does not exist"),
        (["--json", "plan"], "stands before the command"),
        (["train", "job.yaml", "--inject", "x"], "write it like"),
        (["devices", "a100"], "did you mean"),
    ],
)
def test_a_wrong_command_line_ends_with_two_and_a_way_out(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["plan", "--help"]])
def test_help_and_version_end_well(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(arguments) == 0
    assert re.search("polyreme", capsys.readouterr().out)


def test_training_what_cannot_run_says_so_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(SEED / "job.yaml"), "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert "devices of driver ascend cannot run yet" in error
    assert not (tmp_path / "runs").exists()


def test_a_bug_of_ours_shows_no_traceback_but_names_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: list[str]) -> int:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr("polyreme.cli.main._dispatch", broken)
    assert main(["plan"]) == 70
    error = capsys.readouterr().err
    assert "Traceback" not in error
    log = Path(error.rsplit("details: ", 1)[1].strip())
    assert "ZeroDivisionError: by hand" in log.read_text(encoding="utf-8")
    log.unlink()
