"""The public names of both distributions, so that adding or losing one is a decision that a diff shows."""

import importlib
from importlib.metadata import PackageNotFoundError, entry_points, version

import pytest

PUBLIC = {"polyreme": ["__version__"], "fttrainer": ["__version__"]}


@pytest.mark.parametrize("package", sorted(PUBLIC))
def test_public_names_are_exactly_these(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    assert all(hasattr(module, name) for name in module.__all__)


def test_both_distributions_are_installed_with_the_command() -> None:
    try:
        installed = version("polyreme")
    except PackageNotFoundError:
        pytest.skip("running from a source tree that is not installed; scripts/venv installs it")
    assert installed == importlib.import_module("polyreme").__version__
    assert version("fttrainer") == importlib.import_module("fttrainer").__version__
    (command,) = entry_points(group="console_scripts", name="polyreme")
    assert command.value == "polyreme.cli.main:entry"
