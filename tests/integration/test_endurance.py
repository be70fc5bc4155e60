"""Many workers, and many steps."""

import json
import os
import time
from pathlib import Path

import pytest
from small_run import inputs, pipeline, tiny_model, write_text

from polyreme.specs.fields import ScheduleName
from polyreme.specs.model import ModelSpec
from polyreme.training.run import StepMetrics, run


def resident_bytes(process_id: int) -> int:
    pages = int(Path(f"/proc/{process_id}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
def test_memory_is_flat_over_two_hundred_steps(tmp_path: Path) -> None:
    """Split backwards, two stages on each worker, two unequal pipelines: nothing of a step stays behind."""
    pipelines = [
        pipeline("a", [1, 3, 4], 4, ScheduleName.ZB_V, places=[0, 1, 1, 0]),
        pipeline("b", [3], 2, ScheduleName.ZB_H1, base=2),
    ]
    run_dir = tmp_path / "run"
    seen: dict[int, list[int]] = {}

    def look(metrics: StepMetrics) -> None:
        if metrics.step in (50, 195):
            workers = json.loads((run_dir / "processes.json").read_text(encoding="utf-8"))["workers"]
            seen[metrics.step] = [resident_bytes(process_id) for process_id in workers]

    result = run(inputs(pipelines, write_text(tmp_path / "text"), steps=200), run_dir, look, save_weights=False)
    assert len(result.steps) == 200
    for early, late in zip(seen[50], seen[195], strict=True):
        assert late - early < 2e6, "a worker grew"
    peaks = json.loads((run_dir / "memory.json").read_text(encoding="utf-8"))["workers"]
    assert all(worker["peak_bytes"]["activations"] > 0 for worker in peaks)


@pytest.mark.slow
def test_thirty_two_workers_start_within_25_seconds_and_train(tmp_path: Path) -> None:
    small = tiny_model()
    values = {name: getattr(small, name) for name in small.__slots__}
    model = ModelSpec(**{**values, "num_layers": 30})
    one = pipeline("a", list(range(1, 32)), 4, ScheduleName.ONE_F_ONE_B, num_layers=32)
    started = time.monotonic()
    first: list[float] = []

    def note(_: StepMetrics) -> None:
        first.append(time.monotonic() - started)

    result = run(inputs([one], write_text(tmp_path / "text"), steps=3, model=model), tmp_path / "run", note)
    assert first[0] < 25
    assert len(result.steps) == 3
    assert result.steps[-1].loss < result.steps[0].loss + 0.1
