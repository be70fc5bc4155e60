"""What is committed works on any machine: no paths of somebody's machine, no package-index settings, nothing huge."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 1_000_000
# Written in pieces so that this file does not match itself.
FOREIGN = re.compile(
    "|".join(["/" + "(?:home|Users)/[a-z]", "/" + "(?:root|work|farm)/", "index" + "-url", "trusted" + "-host"])
)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of tracked files")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_tracked_file_names_a_path_or_package_index_of_one_machine() -> None:
    found = []
    for file in tracked():
        for number, line in enumerate(file.read_bytes().decode("utf-8", errors="replace").splitlines(), start=1):
            if FOREIGN.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_no_tracked_file_is_over_one_megabyte() -> None:
    assert [str(file.relative_to(ROOT)) for file in tracked() if file.stat().st_size > MAX_BYTES] == []


def test_the_lock_pins_and_hashes_everything_but_torch() -> None:
    lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    pinned = [line for line in lines if line and line[0] not in "# "]
    assert pinned
    assert all(re.match(r"[a-z0-9.-]+==\S+ (;.*)?\\$", line) for line in pinned)
    assert not any(line.startswith("torch==") for line in pinned)
    hashed = sum(bool(re.match(r"    --hash=sha256:[0-9a-f]{64}", line)) for line in lines)
    assert hashed >= len(pinned)
