"""Files become plain data with lines, or faults that name them."""

from pathlib import Path
from typing import Any

import pytest

from polyreme.errors import Fault, InputError
from polyreme.specs.documents import format_path, read_document, with_lines


def read(tmp_path: Path, text: str, file: str = "x.yaml") -> Any:
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    return read_document(path)


def faults(tmp_path: Path, text: str, file: str = "x.yaml") -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, file)
    return [str(fault).replace(f"{tmp_path}/", "") for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[
            ("1e9", 1e9),
            ("1E-3", 1e-3),
            (".5", 0.5),
            ("5.", 5.0),
            ("+7", 7),
            ("010", 10),
            ("-0", 0),
            ("1_000", "1_000"),
        ],
        *[("0x10", "0x10"), ("0o10", "0o10"), ("yes", "yes"), ("no", "no"), ("on", "on"), ("true", True), ("~", None)],
        *[("1:30", "1:30"), ("2001-01-01", "2001-01-01"), (".inf", float("inf")), ("-.INF", float("-inf")), ("", None)],
        *[("'1'", "1"), ("=", "="), ("False", False), ("NULL", None), ("1.2.3", "1.2.3"), ("tRue", "tRue")],
    ],
)
def test_a_yaml_scalar_has_its_core_schema_value(text: str, value: object, tmp_path: Path) -> None:
    found = read(tmp_path, f"a: {text}\n").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_every_value_has_its_line(tmp_path: Path) -> None:
    document = read(tmp_path, "a: 1\nb:\n  - c: 2\n  - d:\n      3\n")
    places = {format_path(path): document.where(path).rsplit(":", 1)[1] for path in document.lines}
    assert places == {"": "1", "a": "1", "b": "2", "b[0]": "3", "b[0].c": "3", "b[1]": "4", "b[1].d": "4"}
    assert document.where(("b", 1, "missing")).endswith(":4")


def test_all_repeated_keys_of_a_yaml_file_are_named(tmp_path: Path) -> None:
    assert faults(tmp_path, "a: 1\nb:\n  c: 1\n  c: 2\na: 3\n") == [
        "x.yaml:4: b.c: this key appears twice; keep one",
        "x.yaml:5: a: this key appears twice; keep one",
    ]


def test_all_repeated_keys_of_a_json_file_are_named_with_path_and_line(tmp_path: Path) -> None:
    assert faults(tmp_path, '{"a": 1,\n "b": {"c": 1,\n "c": 2},\n "a": 3}\n', "x.json") == [
        "x.json:3: b.c: this key appears twice; keep one",
        "x.json:4: a: this key appears twice; keep one",
    ]


def test_repeated_keys_of_json_that_is_no_yaml_are_named_without_a_line(tmp_path: Path) -> None:
    assert faults(tmp_path, '{\t"a": "\\ud800", "a": 3}', "x.json")[0].endswith("a: this key appears twice; keep one")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\nb: 2\n", "x.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: a second YAML document starts here; keep one document per file"),
        ("a: *b\n", "x.yaml:1: not valid YAML: found undefined alias"),
        (
            "a: !!python/object:os.system x\n",
            "x.yaml:1: a: tag tag:yaml.org,2002:python/object:os.system is not allowed",
        ),
        ("a: 1\n<<: {b: 1}\n", "x.yaml:2: merge keys are not supported; write the keys out"),
        ("a:\n  ? [1]\n  : 2\n", "x.yaml:2: a: a key must be plain text"),
        (" \n", "x.yaml: is empty"),
        ("a: " + "[" * 51 + "]" * 51, "x.yaml:1: nested deeper than 50"),
        ("a: " + "9" * 500, "x.yaml:1: a: '99"),
    ],
)
def test_a_text_that_is_no_plain_yaml_names_line_and_reason(text: str, expected: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, text)
    assert fault.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n "b"}', "x.json:2: not valid JSON"),
        ("{'a': 1}", "x.json:1: not valid JSON"),
        ('{"a": NaN}', "x.json: not valid JSON: NaN is not JSON"),
        ('{"a": -Infinity}', "x.json: not valid JSON: -Infinity is not JSON"),
        ('{"a": 1} x', "x.json:1: not valid JSON: Extra data"),
        ("[" * 100_000, "x.json: is nested too deeply"),
        ("9" * 100_000, "x.json: not valid JSON: a number of 100000 digits"),
        ("", "x.json: is empty"),
    ],
)
def test_a_text_that_is_no_json_names_line_and_reason(text: str, expected: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, text, "x.json")
    assert fault.startswith(expected)


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"a: \xff\n")
    for path, problem in (
        (tmp_path / "missing.yaml", "does not exist"),
        (tmp_path, "is a directory"),
        (Path("/dev/null"), "is not a regular file"),
        (tmp_path / "binary.yaml", "is not UTF-8 text (byte 3)"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        (tmp_path / "a\0b", ""),
    ):
        with pytest.raises(InputError) as caught:
            read_document(path)
        assert problem in caught.value.faults[0].problem


def test_a_file_over_the_size_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("#" * (2**20 + 1))
    with pytest.raises(InputError, match=r"has 1048577 bytes; the limit is 1048576"):
        read_document(path)


def test_an_alias_bomb_is_refused(tmp_path: Path) -> None:
    text = "a: &a [" + ", ".join("x" * 100) + "]\nb: &b [" + ", ".join(["*a"] * 100) + "]\nc: ["
    (fault,) = faults(tmp_path, text + ", ".join(["*b"] * 100) + "]\n")
    assert "holds more than 200000 values" in fault


def test_lines_of_json_are_found_when_needed(tmp_path: Path) -> None:
    document = read(tmp_path, '{\n "a":\n  [1,\n 2]}', "x.json")
    assert document.where(("a", 1)) == document.file
    assert with_lines(document).where(("a", 1)) == f"{document.file}:4"


def test_a_path_prints_like_an_expression_and_hides_control_characters() -> None:
    assert format_path(("nodes", 0, "devices", 1, "kind")) == "nodes[0].devices[1].kind"
    assert format_path(("a\x1b[31m",)) == r"'a\x1b[31m'"
    assert len(format_path(("a" * 5000,))) == 60


def test_an_error_with_many_faults_counts_all_and_shows_the_first() -> None:
    error = InputError([Fault(source=f"x:{number}", problem="is wrong") for number in range(1000)])
    lines = str(error).splitlines()
    assert lines[0] == "1000 faults in the input"
    assert lines[-1] == "  ... and 970 more"
    assert len(lines) == 32
    assert len(error.faults) == 1000
