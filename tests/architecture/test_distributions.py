"""Both distributions build, their wheels hold every file of the source tree, and planning does not ask for torch."""

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {"polyreme": ROOT, "fttrainer": ROOT / "fttrainer"}


@pytest.fixture(scope="module", params=sorted(PROJECTS))
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(name, path) of a freshly built wheel."""
    folder = tmp_path_factory.mktemp(request.param)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=PROJECTS[request.param],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return request.param, path


def test_a_wheel_holds_every_file_of_the_package_and_the_licence(wheel: tuple[str, Path]) -> None:
    name, path = wheel
    source = PROJECTS[name] / "src"
    files = {file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    packed = set(zipfile.ZipFile(path).namelist())
    assert {file.relative_to(source).as_posix() for file in files} <= packed
    assert f"{name}/py.typed" in packed
    assert any(entry.endswith("licenses/LICENSE") for entry in packed)


def test_torch_is_asked_for_by_the_run_extra_only(wheel: tuple[str, Path]) -> None:
    _, path = wheel
    archive = zipfile.ZipFile(path)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    assert all("extra == 'run'" in line for line in required if line.startswith(("torch", "safetensors")))
    assert not any(line.startswith(("jax", "mindspore")) for line in required)


def test_the_lock_holds_every_dependency_of_the_plan_half(wheel: tuple[str, Path]) -> None:
    _, path = wheel
    archive = zipfile.ZipFile(path)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    names = {line.split(">")[0].split(";")[0].strip() for line in required if "torch" not in line}
    locked = {line.split("==")[0] for line in (ROOT / "requirements" / "dev.txt").read_text().splitlines()}
    assert names <= locked
