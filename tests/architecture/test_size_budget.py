"""Files, functions and classes stay within the size budget of scripts/size_budget.py."""

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "size_budget.py"


def test_sources_are_within_their_budget() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout


def test_a_long_file_function_and_class_are_each_named(tmp_path: Path) -> None:
    body = "".join(f"    x{number} = {number}\n" for number in range(251))
    (tmp_path / "long.py").write_text(f"class Big:\n{body}\ndef long():\n{body}")
    found = runpy.run_path(str(SCRIPT))["breaches"]((tmp_path,), {}, tmp_path)
    places = [line.split()[0] for line in found]
    assert sorted(places) == ["long.py", "long.py::Big", "long.py::long"]


def test_an_exception_raises_the_budget_and_is_reported_once_nothing_needs_it(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * 450)
    breaches = runpy.run_path(str(SCRIPT))["breaches"]
    assert breaches((tmp_path,), {"long.py": (450, "a table")}, tmp_path) == []
    assert "has 450 lines" in breaches((tmp_path,), {"long.py": (449, "a table")}, tmp_path)[0]
    (tmp_path / "long.py").write_text("x = 1\n")
    assert "nothing needs" in breaches((tmp_path,), {"long.py": (450, "a table")}, tmp_path)[0]
