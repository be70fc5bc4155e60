"""The demo from end to end, shortened."""

import json
from pathlib import Path

import pytest

from polyreme.cli import demo
from polyreme.cli.main import main


def test_the_demo_runs_and_reports_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("ROUNDS", 1), ("STEPS_PER_ROUND", 2), ("TRAINED_STEPS", 2), ("PROFILE_BUDGET_S", 1.0)):
        monkeypatch.setattr(demo, name, value)
    assert main(["demo", "--runs", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["splits"]) == {"equal", "proportional", "planned"}
    for split in result["splits"].values():
        assert split["measured_s"] > 0
        assert split["predicted_s"] > 0
    predicted = result["splits"]["equal"]["predicted_s"] / result["splits"]["planned"]["predicted_s"]
    assert result["gain"]["predicted"] == pytest.approx(predicted)
    assert result["gain"]["predicted"] > 1.3
    assert Path(result["report"]).read_text(encoding="utf-8").startswith("<!")
    folder = next(tmp_path.iterdir())
    assert {"model.json", "cluster.json", "job.json", "profile.json", "plan.json"} <= {p.name for p in folder.iterdir()}
