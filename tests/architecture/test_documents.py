"""Documents say what is there: links lead somewhere, commands exist, every command and every field is described."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polyreme.cli.main import COMMANDS
from polyreme.errors import PolyremeError
from polyreme.specs import cluster, device, events, job, model, plan, profile, report
from polyreme.specs.io import load_job

ROOT = Path(__file__).resolve().parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """Names that headings of a page can be linked by."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_commands_of_a_readme_exist(page: Path) -> None:
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = [line.removeprefix("$ ").split("#")[0].split() for block in blocks for line in block.splitlines()]
    scripts = {word for line in words for word in line if word.startswith("scripts/")}
    commands = {line[1] for line in words if len(line) > 1 and line[0].endswith("polyreme")}
    assert {"scripts/quickstart", "scripts/test"} <= scripts
    assert all((ROOT / script).stat().st_mode & 0o111 for script in scripts)
    assert commands
    assert commands <= set(COMMANDS)


def test_both_readmes_show_the_same_commands() -> None:
    shown = [re.findall(r"^\$ .*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE) for page in READMES]
    assert shown[0] == shown[1]
    assert shown[0]


def test_every_package_is_in_the_ten_minute_picture() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    packages = {folder.parent.name for folder in (ROOT / "src" / "polyreme").glob("*/__init__.py")}
    assert len(packages) > 5
    assert {package for package in packages if f"\n| `{package}` |" not in page} == set()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_is_described_in_the_reference(command: str) -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert f"\n## {command}\n" in page


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_a_command_shows_an_example_and_every_option_is_in_the_reference(command: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "polyreme", command, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert f"example: polyreme {command}" in result.stdout
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {command}\n")[1].split("\n## ")[0]
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", result.stdout)) - {"--help"}
    assert {option for option in options if f"`{option}" not in section} == set()


@pytest.mark.parametrize("module", [cluster, device, job, model, plan, profile, report], ids=lambda m: m.__name__)
def test_every_field_of_a_file_is_in_the_reference(module: object) -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    own = [
        item for item in vars(module).values() if dataclasses.is_dataclass(item) and item.__module__ == module.__name__
    ]  # type: ignore[attr-defined]
    names = {field.name for item in own for field in dataclasses.fields(item)}
    assert names
    assert {name for name in names if not re.search(rf"`{name}`", page)} == set()


def test_examples_of_data_in_the_reference_are_jobs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    section = page.split("\n### data\n")[1].split("\n## ")[0]
    examples = re.findall(r"```yaml\n(.*?)```", section, flags=re.DOTALL)
    head = "name: j\nmodel: m\ncluster: c\nbatch: {sequences: 8, tokens_per_sequence: 16}\n"
    kinds = set()
    for example in examples:
        (tmp_path / "job.yaml").write_text(head + example, encoding="utf-8")
        kinds.add(load_job(tmp_path / "job.yaml").data.kind)
    assert kinds == {"text", "tokens", "huggingface"}


def test_event_ops_and_record_size_are_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    assert f"{events.RECORD_BYTES} bytes" in page
    assert all(f"| {number} | `{text}` |" in page for text, number in events.OP_NUMBERS.items())


def test_every_exit_code_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    kinds = [PolyremeError, *PolyremeError.__subclasses__()]
    assert all(f"| {kind.exit_code} |" in page for kind in kinds)
    assert "| 130 |" in page
