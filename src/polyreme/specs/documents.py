"""Reads a YAML or JSON text into plain data plus the line of every path. Knows syntax, nothing of polyreme.

Safe by construction: no tags beyond plain data, YAML 1.2 scalars (`1e9` is a number, `no` is a string), duplicate keys
refused, and limits on size, nesting and what aliases may expand to.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from polyreme.errors import Fault, InputError

Data = Any
DocPath = tuple[str | int, ...]

MAX_YAML_BYTES = 2**20
MAX_JSON_BYTES = 2**28
MAX_DEPTH = 50
MAX_VALUES = 200_000

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML 1.2 core scalars only."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)
_PLAIN = "tag:yaml.org,2002:"
_SCALARS = ("str", "null", "bool", "int", "float")
_LONGEST_NUMBER = 400
_TWICE = "this key appears twice"


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data of one file, and where each path of it stands. `lines` is empty for JSON until a fault needs it."""

    file: str
    data: Data
    lines: dict[DocPath, int]

    def where(self, path: DocPath) -> str:
        """`file:line` of the nearest known ancestor of `path`."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return f"{self.file}:{line}"
        return self.file


def read_document(path: Path) -> Document:
    """Parse `path` (JSON if it ends in .json, else YAML). InputError on anything unreadable, with every fault found."""
    as_json = path.suffix.lower() == ".json"
    text = _read_text(path, MAX_JSON_BYTES if as_json else MAX_YAML_BYTES)
    return _parse_json(str(path), text) if as_json else _parse_yaml(str(path), text)


def _read_text(path: Path, limit: int) -> str:
    file = str(path)
    try:
        if not path.is_file():
            what = "is a directory" if path.is_dir() else "is not a regular file" if path.exists() else "does not exist"
            raise InputError.single(file, what, fix="give the path of a file")
        size = path.stat().st_size
        if size > limit:
            raise InputError.single(file, f"has {size} bytes; the limit is {limit}")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError.single(file, f"is not UTF-8 text (byte {error.start})", fix="save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise InputError.single(file, f"cannot be read: {error}") from None


def _parse_yaml(file: str, text: str) -> Document:
    try:
        _check_depth(file, text)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError([_yaml_fault(file, error)]) from None
    if node is None:
        raise InputError.single(file, "is empty")
    builder = _Builder(file)
    data = builder.build(node, ())
    if builder.faults:
        raise InputError(builder.faults)
    return Document(file, data, builder.lines)


def _check_depth(file: str, text: str) -> None:
    """Refuse deep nesting and several documents before anything recursive runs."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                where = f"{file}:{_line(event)}"
                raise InputError.single(where, "a second YAML document starts here", fix="keep one document per file")
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise InputError.single(f"{file}:{_line(event)}", f"nested deeper than {MAX_DEPTH}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _yaml_fault(file: str, error: yaml.YAMLError) -> Fault:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"{file}:{mark.line + 1}" if mark is not None else file
    return Fault(source=where, problem=f"not valid YAML: {problem}")


class _Builder:
    """Turns composed YAML nodes into plain data, recording lines and faults."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[DocPath, int] = {}
        self.faults: list[Fault] = []
        self.num_values = 0

    def build(self, node: yaml.Node, path: DocPath) -> Data:
        """Data of `node`, which stands at `path`."""
        self.lines[path] = node.start_mark.line + 1
        self.num_values += 1
        if self.num_values > MAX_VALUES or len(path) > MAX_DEPTH:
            raise InputError.single(
                self.file,
                f"holds more than {MAX_VALUES} values or nests deeper than {MAX_DEPTH} once aliases are expanded",
            )
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_PLAIN) in _SCALARS:
            return self._scalar(node, path)
        return self._fault(node, path, f"tag {node.tag} is not allowed", "use plain values")

    def _mapping(self, node: yaml.MappingNode, path: DocPath) -> Data:
        result: dict[str, Data] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or not key_node.tag.endswith((":str", ":int", ":float", ":bool", ":null")):
                self._fault(key_node, path, "a key must be plain text")
            elif key in result:
                self._fault(key_node, (*path, key), _TWICE, "keep one")
            elif key == "<<":
                self._fault(key_node, path, "merge keys are not supported", "write the keys out")
            else:
                result[key] = self.build(value_node, (*path, key))
                self.lines[(*path, key)] = key_node.start_mark.line + 1
        return result

    def _scalar(self, node: yaml.ScalarNode, path: DocPath) -> Data:
        text, kind = node.value, node.tag.removeprefix(_PLAIN)
        if kind == "str":
            return text
        try:
            if kind == "null" and text in ("", "~", "null", "Null", "NULL"):
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int" and len(text) <= _LONGEST_NUMBER:
                return int(text)
            if kind == "float" and len(text) <= _LONGEST_NUMBER:
                return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
        except (ValueError, KeyError):
            pass
        return self._fault(node, path, f"{_short(text)} is not a plain {kind}")

    def _fault(self, node: yaml.Node, path: DocPath, problem: str, fix: str | None = None) -> None:
        where = f"{self.file}:{node.start_mark.line + 1}"
        self.faults.append(Fault(source=where, path=format_path(path), problem=problem, fix=fix))


def _parse_json(file: str, text: str) -> Document:
    if not text.strip():
        raise InputError.single(file, "is empty")
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Data]]) -> dict[str, Data]:
        result = dict(items)
        if len(result) != len(items):
            duplicates.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return result

    def constant(name: str) -> Data:
        raise ValueError(f"{name} is not JSON")

    def integer(digits: str) -> int:
        if len(digits) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(digits)} digits")
        return int(digits)

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_int=integer)
    except json.JSONDecodeError as error:
        raise InputError.single(f"{file}:{error.lineno}", f"not valid JSON: {error.msg}") from None
    except RecursionError:
        raise InputError.single(file, "is nested too deeply") from None
    except ValueError as error:
        raise InputError.single(file, f"not valid JSON: {error}") from None
    if duplicates:
        raise _repeated_keys(file, text, duplicates)
    return Document(file, data, {})


def _repeated_keys(file: str, text: str, keys: list[str]) -> InputError:
    """The error of a JSON text with `keys` repeated: with paths and lines if YAML, which keeps them, can read it."""
    if len(text) <= MAX_YAML_BYTES:
        try:
            _parse_yaml(file, text)
        except InputError as error:
            if any(fault.problem == _TWICE for fault in error.faults):
                return error
    return InputError([Fault(source=file, path=format_path((key,)), problem=_TWICE, fix="keep one") for key in keys])


def with_lines(document: Document) -> Document:
    """The same document with lines known: JSON is read again as YAML, its superset, when a fault needs lines."""
    if document.lines:
        return document
    try:
        text = _read_text(Path(document.file), MAX_YAML_BYTES)
        return Document(document.file, document.data, _parse_yaml(document.file, text).lines)
    except InputError:
        return document


def format_path(path: DocPath) -> str:
    """`nodes[0].devices[1].kind`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if part.isprintable() and len(part) <= 60 else _short(part)
            text += f".{key}" if text else key
    return text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
