"""Imports the whole kernel, the plan half and its commands, and fails if that loaded a deep-learning framework.

The import rules in .importlinter see what the source says; this sees what happens, third-party packages included.
"""

import importlib
import pkgutil
import sys

import polyreme

RUN_HALF = frozenset(
    ["finetune", "training", "profiler", "lab", "runtime", "adapters", "models", "precision", "savers", "drivers"]
)
RUN_COMMANDS = frozenset(["demo", "profile", "train"])
"""Commands that run something; all others plan or show."""
FRAMEWORKS = ("torch", "jax", "mindspore")


def plan_half_modules() -> list[str]:
    """Names of all modules of the kernel and the plan half, and of the commands that only plan or show."""
    skipped = {f"polyreme.{package}" for package in RUN_HALF} | {f"polyreme.cli.{name}" for name in RUN_COMMANDS}
    found, folders = [], [("polyreme", list(polyreme.__path__))]
    while folders:
        package, path = folders.pop()
        for module in pkgutil.iter_modules(path, f"{package}."):
            if module.name in skipped or module.name == "polyreme.__main__":
                continue
            found.append(module.name)
            if module.ispkg:
                folders.append((module.name, list(importlib.import_module(module.name).__path__)))
    return sorted(found)


if __name__ == "__main__":
    names = plan_half_modules()
    for name in names:
        importlib.import_module(name)
    loaded = [framework for framework in FRAMEWORKS if framework in sys.modules]
    print(f"{len(names)} modules imported; {' and '.join(loaded) or 'no framework'} loaded")
    sys.exit(bool(loaded))
