"""Planning needs no deep-learning framework: nothing of the kernel, the plan half or its commands loads one."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "torch_free.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=100, check=False)


def test_plan_half_loads_no_framework() -> None:
    result = run(str(SCRIPT))
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout.split()[0]) >= 30


def test_a_loaded_framework_is_reported() -> None:
    fake = "import runpy, sys, types; sys.modules['jax'] = types.ModuleType('jax')"
    result = run("-c", f"{fake}; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')")
    assert result.returncode == 1, result.stderr
    assert "jax loaded" in result.stdout
