"""Checks that files, functions and classes stay small enough to read in one go. Prints every breach; exit 1 if any.

Lines are counted from the first to the last, comments and docstrings included. Only shipped code has a budget.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 60
CLASS_LINES = 250

EXCEPTIONS: dict[str, tuple[int, str]] = {}
"""`file` or `file::name` -> (lines allowed, why splitting would make it harder to read)."""

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "src", ROOT / "fttrainer" / "src")


def sizes(file: Path) -> Iterator[tuple[str, int, int]]:
    """(name, lines, budget) of the file itself, named "", and of every function and class in it."""
    text = file.read_text(encoding="utf-8")
    yield "", len(text.splitlines()), FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or node.lineno) - first + 1
            yield node.name, lines, CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES


def breaches(folders: tuple[Path, ...], exceptions: dict[str, tuple[int, str]], base: Path) -> list[str]:
    """One sentence per breach, and per exception that nothing needs any more."""
    found, needed = [], set()
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        for name, lines, budget in sizes(file):
            place = file.relative_to(base).as_posix() + (f"::{name}" if name else "")
            if lines <= budget:
                continue
            needed.add(place)
            allowed, _ = exceptions.get(place, (budget, ""))
            if lines > allowed:
                found.append(f"{place} has {lines} lines; the budget is {allowed}")
    found += [f"{place} is an exception that nothing needs any more" for place in sorted(set(exceptions) - needed)]
    return found


if __name__ == "__main__":
    problems = breaches(SOURCES, EXCEPTIONS, ROOT)
    print("\n".join(problems) or "every file, function and class is within its budget")
    sys.exit(bool(problems))
