"""polyreme plan on awkward jobs: exit codes, and never a traceback."""

import json
from pathlib import Path

import pytest

from polyreme.cli.main import main

MODEL = (
    "name: m\nfamily: llama\nnum_layers: {layers}\nhidden_size: 256\nnum_heads: 4\n"
    "ffn_hidden_size: 512\nvocab_size: 512\n"
)
DEVICE = (
    "  - {{name: {name}, driver: cuda, memory_bytes: {memory}, peak_flops_per_s: {{fp32: {speed}}},"
    " memory_bandwidth_bytes_per_s: 1e12, price_usd_per_hour: 2}}\n"
)
LINK = "link_kinds:\n  - {name: net, bandwidth_bytes_per_s: 1e10, latency_s: 1e-5}\n"


def write(
    folder: Path,
    kinds: dict[str, tuple[int, float, float]],
    *,
    layers: int = 8,
    sequences: int = 16,
    more: str = "",
) -> Path:
    """Files of a job; `kinds` maps a name to (devices, memory, speed). Returns the job file."""
    entries = ", ".join(f"{{kind: {name}, count: {count}, name: {name}}}" for name, (count, _, _) in kinds.items())
    own = "".join(DEVICE.format(name=name, memory=memory, speed=speed) for name, (_, memory, speed) in kinds.items())
    nodes = f"name: c\nnodes:\n  - {{name: n, devices: [{entries}], links: {{intra: net, inter: net}}}}\n"
    (folder / "cluster.yaml").write_text(f"{nodes}device_kinds:\n{own}{LINK}", encoding="utf-8")
    (folder / "model.yaml").write_text(MODEL.format(layers=layers), encoding="utf-8")
    batch = f"batch: {{sequences: {sequences}, tokens_per_sequence: 64}}\n"
    job = f"name: j\nmodel: model.yaml\ncluster: cluster.yaml\n{batch}"
    (folder / "job.yaml").write_text(job + more, encoding="utf-8")
    return folder / "job.yaml"


@pytest.mark.parametrize(
    ("count", "layers", "sequences"), [(1, 8, 16), (9, 2, 16), (3, 1, 1), (4, 8, 67), (2, 8, 1), (40, 3, 8)]
)
def test_odd_counts_are_planned(tmp_path: Path, count: int, layers: int, sequences: int) -> None:
    job = write(tmp_path, {"a": (count, 80e9, 2e11)}, layers=layers, sequences=sequences)
    assert main(["plan", str(job), "-o", str(tmp_path / "plan.json")]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    stages = [stage["layers"] for stage in plan["pipelines"][0]["stages"]]
    assert len(stages) == len(set(plan["workers"])) <= count
    assert (stages[0][0], stages[-1][1]) == (0, layers + 2)
    assert plan["pipelines"][0]["microbatches"] * plan["pipelines"][0]["microbatch_sequences"] == sequences


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("limits: {step_time_s: 1e-6}\n", "limit: limits.step_time_s, short by"),
        ("limits: {cost_per_step_usd: 1e-12}\n", "limit: limits.cost_per_step_usd, short by"),
        ("precision: bf16\n", "limit: precision bf16"),
    ],
)
def test_what_cannot_be_planned_exits_3_and_names_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, words: str
) -> None:
    job = write(tmp_path, {"a": (2, 80e9, 2e11)}, more=more)
    assert main(["plan", str(job), "-o", str(tmp_path / "plan.json"), "--json"]) == 3
    captured = capsys.readouterr()
    assert words in captured.err
    assert "would fit: " in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (tmp_path / "plan.json").exists()


def test_json_of_a_plan_is_one_line_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path, {"a": (2, 80e9, 2e11), "b": (1, 80e9, 1e11)})
    assert main(["plan", str(job), "-o", str(tmp_path / "plan.json"), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert isinstance(json.loads(captured.out), dict)
    assert captured.err == ""
