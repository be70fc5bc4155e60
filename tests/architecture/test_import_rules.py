"""The import rules of .importlinter hold, and they are able to fail."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_logo=True, no_cache=True))"


def lint(folder: Path, sources: list[Path]) -> subprocess.CompletedProcess[str]:
    path = f"import sys; sys.path[:0] = {[str(source) for source in sources]!r}; "
    return subprocess.run(
        [sys.executable, "-c", path + LINT], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def test_imports_point_down_in_every_chain() -> None:
    result = lint(ROOT, [ROOT / "src", ROOT / "fttrainer" / "src"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


def test_an_unplaced_package_and_a_kernel_that_imports_torch_are_both_found(tmp_path: Path) -> None:
    modules = dict.fromkeys(("__init__", "__main__", "cli", "schedules", "layout", "catalog", "units", "errors"), "")
    modules |= {"specs": "import torch\n", "stray": ""}
    for name, text in modules.items():
        (tmp_path / "polyreme").mkdir(exist_ok=True)
        (tmp_path / "polyreme" / f"{name}.py").write_text(text)
    (tmp_path / "fttrainer").mkdir()
    (tmp_path / "fttrainer" / "__init__.py").write_text("from polyreme import units\n")
    (tmp_path / ".importlinter").write_text((ROOT / ".importlinter").read_text())
    result = lint(tmp_path, [tmp_path])
    assert result.returncode == 1, result.stdout + result.stderr
    for broken in ("Kernel and plan half load no framework BROKEN", "fttrainer stands alone BROKEN", "stray"):
        assert broken in result.stdout
