"""Every example loads, its paths lead somewhere, and its devices are in the catalogue."""

from pathlib import Path

import pytest

from polyreme.catalog.entries import device_kinds
from polyreme.catalog.fleet import build_fleet
from polyreme.layout.layers import parameter_count
from polyreme.specs.io import load_cluster, load_job, load_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = sorted(EXAMPLES.rglob("job*.yaml"))
NUM_DEVICES = {"quickstart": 4, "seed-cluster": 14, "hf-config": 4, "blocks": 4}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_job_loads_with_its_model_and_cluster(path: Path) -> None:
    job = load_job(path)
    model, cluster = load_model(path.parent / job.model), load_cluster(path.parent / job.cluster)
    if model.max_sequence_length is not None:
        assert job.batch.tokens_per_sequence <= model.max_sequence_length
    kinds = device_kinds() | {kind.name: kind for kind in cluster.device_kinds}
    assert {entry.kind for node in cluster.nodes for entry in node.devices} <= set(kinds)
    fleet = build_fleet(cluster, str(path))
    assert len(fleet.devices) == NUM_DEVICES[path.parent.name]
    assert all(device.kind.runs(job.precision) for device in fleet.devices)


def test_every_model_and_cluster_belongs_to_a_job() -> None:
    named = {(path.parent / name).resolve() for path in JOBS for name in (load_job(path).model, load_job(path).cluster)}
    files = {file for file in EXAMPLES.rglob("*") if file.suffix in (".yaml", ".json") and file not in JOBS}
    assert files == named


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("quickstart/model.yaml", (2e6, 8e6)),
        ("seed-cluster/model.yaml", (8.02e9, 8.04e9)),
        ("seed-cluster/model-70b.yaml", (70.5e9, 70.6e9)),
        ("hf-config/config.json", (1.09e9, 1.11e9)),
    ],
)
def test_a_model_has_the_parameters_its_name_says(name: str, parameters: tuple[float, float]) -> None:
    low, high = parameters
    assert low <= parameter_count(load_model(EXAMPLES / name)) <= high
