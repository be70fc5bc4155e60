"""plan, explain and simulate as a user runs them."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyreme.cli.main import main

ROOT = Path(__file__).parents[3]
SEED = ROOT / "examples" / "seed-cluster"


def plan(job: Path, output: Path, *more: str) -> int:
    return main(["plan", str(job), "-o", str(output), *more])


def test_the_seed_cluster_is_planned_and_says_why_the_small_devices_are_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(SEED / "job.yaml", tmp_path / "plan.json") == 0
    out = capsys.readouterr().out
    assert "left out 4 x ipu-c600: one block needs" in out
    for name in ("equal split", "speed-proportional", "best homogeneous"):
        assert name in out
    assert main(["explain", str(tmp_path / "plan.json")]) == 0
    assert "Pace: stage" in capsys.readouterr().out


def test_a_model_that_cannot_fit_is_refused_naming_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(SEED / "job-70b.yaml", tmp_path / "plan.json") == 3
    error = capsys.readouterr().err
    assert "limit: device memory, short by 540 GB" in error
    assert "optimizer state on the host" in error
    assert not (tmp_path / "plan.json").exists()


def test_a_plan_has_the_golden_form(tmp_path: Path) -> None:
    assert plan(ROOT / "examples" / "hf-config" / "job.yaml", tmp_path / "plan.json") == 0
    found: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    for key in ("created_by", "digest", "inputs", "predicted", "sources", "workers"):
        del found[key]
    for stage in found["pipelines"][0]["stages"]:
        del stage["time_s"]
    golden = ROOT / "tests" / "golden" / "plans" / "hf-config.json"
    assert json.dumps(found, indent=1, sort_keys=True) + "\n" == golden.read_text(encoding="utf-8")


def test_json_is_one_object_and_equals_the_written_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(SEED / "job.yaml", tmp_path / "plan.json", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert printed["plan"]["digest"] == written["digest"]
    assert {one["name"] for one in printed["alternatives"]} == {"equal split", "speed-proportional", "best homogeneous"}
    assert main(["simulate", str(tmp_path / "plan.json"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step_time_s"] == pytest.approx(printed["report"]["step_time_s"])


def test_printed_actions_parse_back_and_a_trace_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from polyreme.schedules.action import parse_actions  # noqa: PLC0415
    from polyreme.schedules.validate import validate  # noqa: PLC0415

    assert plan(ROOT / "examples" / "hf-config" / "job.yaml", tmp_path / "plan.json") == 0
    capsys.readouterr()
    trace = tmp_path / "trace.json"
    assert main(["simulate", str(tmp_path / "plan.json"), "--actions", "--trace", str(trace)]) == 0
    lists = parse_actions(capsys.readouterr().out)
    assert validate(lists) == []
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == sum(map(len, lists.values()))


def test_inputs_that_changed_since_planning_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model.yaml", "cluster.yaml", "job.yaml"):
        (tmp_path / name).write_bytes((SEED / name).read_bytes())
    assert plan(tmp_path / "job.yaml", tmp_path / "plan.json") == 0
    text = (tmp_path / "model.yaml").read_text(encoding="utf-8")
    (tmp_path / "model.yaml").write_text(text.replace("num_layers: 32", "num_layers: 31"), encoding="utf-8")
    for command in ("simulate", "explain"):
        assert main([command, str(tmp_path / "plan.json")]) == 2
        assert "the plan was made from" in capsys.readouterr().err


def test_the_objective_cost_chooses_cheaper_devices(tmp_path: Path) -> None:
    text = (SEED / "cluster.yaml").read_text(encoding="utf-8")
    cluster = text.replace("{kind: ascend-910b, count: 2}", "{kind: ascend-910b, count: 2, price_usd_per_hour: 90}")
    assert cluster != text
    (tmp_path / "cluster.yaml").write_text(cluster, encoding="utf-8")
    (tmp_path / "model.yaml").write_bytes((SEED / "model.yaml").read_bytes())
    job = (SEED / "job.yaml").read_text(encoding="utf-8")
    workers = {}
    for objective in ("time", "cost"):
        (tmp_path / f"{objective}.yaml").write_text(
            job.replace("objective: time", f"objective: {objective}"), encoding="utf-8"
        )
        assert plan(tmp_path / f"{objective}.yaml", tmp_path / "plan.json") == 0
        workers[objective] = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["workers"]
    assert any(worker.startswith("npu-node") for worker in workers["time"])
    assert not any(worker.startswith("npu-node") for worker in workers["cost"])


def test_faults_of_all_files_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = (SEED / "job.yaml").read_text(encoding="utf-8").replace("precision: fp16", "precision: fp61")
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    (tmp_path / "model.yaml").write_text("name: x\nfamily: lama\n", encoding="utf-8")
    arguments = ["--model", str(tmp_path / "model.yaml"), "--cluster", str(tmp_path / "nothing.yaml")]
    assert plan(tmp_path / "job.yaml", tmp_path / "plan.json", *arguments) == 2
    error = capsys.readouterr().err
    for words in ("fp61", "did you mean llama?", "nothing.yaml: does not exist", "hidden_size: is required"):
        assert words in error


def test_planning_fourteen_devices_stays_within_its_start_up_budget(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys; from polyreme.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "plan", str(SEED / "job.yaml"), "-o", str(tmp_path / "plan.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert cpu_s < 3.0, "five times the budget of 0.6 s: no matter of a busy machine"
