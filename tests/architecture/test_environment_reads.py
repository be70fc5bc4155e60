"""Environment variables are read by the command line and the launcher only; all else is told by argument."""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "polyreme"
READERS = ("cli/", "runtime/launch.py")
EXCEPTIONS = {"runtime/mesh.py": "names the loopback interface to gloo, which takes it from nowhere else"}


def reads(file: Path) -> bool:
    """Whether a module touches os.environ or os.getenv, under whatever import."""
    names = {"environ", "environb", "getenv"}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in names:
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names}:
            return True
    return False


def test_only_the_command_line_and_the_launcher_touch_environment_variables() -> None:
    touching = {file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py") if reads(file)}
    others = {name for name in touching if not name.startswith(READERS)}
    assert others == set(EXCEPTIONS)


def test_a_read_is_found_however_it_is_imported(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    for text in ("import os\nx = os.environ['X']\n", "from os import getenv\n", "import os as o\no.getenv('X')\n"):
        file.write_text(text)
        assert reads(file)
    file.write_text("import os\nx = os.getpid()\n")
    assert not reads(file)
