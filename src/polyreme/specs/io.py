"""The only (de)serialiser of spec files: reads with every fault reported at its line, writes atomically with a digest.

Reading never runs code and never writes. Faults of one file are collected into one InputError.
"""

import dataclasses
import difflib
import functools
import hashlib
import io
import json
import os
import re
import tempfile
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from polyreme import __version__
from polyreme.errors import Fault, InputError
from polyreme.specs.cluster import ClusterSpec
from polyreme.specs.documents import DocPath, Document, format_path, read_document, with_lines
from polyreme.specs.huggingface import is_huggingface, to_model_data
from polyreme.specs.job import JobSpec
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan
from polyreme.specs.profile import ProfileSpec
from polyreme.specs.report import Report

S = TypeVar("S")
CREATED_BY = f"polyreme {__version__}"
_KINDS = (ModelSpec, ClusterSpec, JobSpec, ProfileSpec, Plan, Report)
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in _KINDS}
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that a JSON string may hold as they are and YAML may not; escaped, a saved file reads as either."""
_NOT_CONTENT = frozenset({"digest", "created_by", "predicted", "sources", "provenance"})


def load_model(path: Path) -> ModelSpec:
    """Read model.yaml, or a Hugging Face config.json as it is."""
    document = read_document(path)
    return _load_huggingface(path, document) if is_huggingface(document.data) else decode(ModelSpec, document)


def _load_huggingface(path: Path, document: Document) -> ModelSpec:
    document = with_lines(document)
    model = to_model_data(document, name=path.parent.name or path.stem)
    try:
        return decode(ModelSpec, Document(document.file, model.data, {(): 1}))
    except InputError as error:
        faults = [model.in_words_of(document, fault) for fault in error.faults]
        first_of_key = {fault.path or fault.problem: fault for fault in reversed(faults)}
        raise InputError([fault for fault in faults if fault in first_of_key.values()]) from None


def load_cluster(path: Path) -> ClusterSpec:
    """Read cluster.yaml."""
    return decode(ClusterSpec, read_document(path))


def load_job(path: Path) -> JobSpec:
    """Read job.yaml."""
    return decode(JobSpec, read_document(path))


def load_profile(path: Path) -> ProfileSpec:
    """Read profile.json and check its digest."""
    return _load_signed(ProfileSpec, path)


def load_plan(path: Path) -> Plan:
    """Read plan.json, check every rule of the format and its digest."""
    return _load_signed(Plan, path)


def load_report(path: Path) -> Report:
    """Read a report that `simulate` wrote and check its digest."""
    return _load_signed(Report, path)


def _load_signed(kind: type[S], path: Path) -> S:
    document = read_document(path)
    loaded = decode(kind, document)
    stated, actual = loaded.digest, digest(loaded)  # type: ignore[attr-defined]
    if stated != actual:
        raise InputError.single(
            with_lines(document).where(("digest",)),
            f"the content was changed: digest {stated} is stated, {actual} computed",
            path="digest",
            fix="write the file again with the command that made it, or set digest to the computed one",
        )
    return loaded


def save(path: Path, value: Any) -> None:
    """Write a spec as sorted JSON with its digest; the old file stays whole until the new one is."""
    names = {field.name for field in dataclasses.fields(value)}
    if "digest" in names:
        value = dataclasses.replace(value, digest=digest(value))
    text = json.dumps(to_data(value), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    write_atomically(path, _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step. InputError if the folder cannot be written to."""
    with atomic_file(path) as file:
        file.write(text)


@contextmanager
def atomic_file(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of `path` when the block ends well. InputError if it cannot be written."""
    with atomic_binary_file(path) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8")
        yield text
        text.detach()  # after writing everything, and without closing


@contextmanager
def atomic_binary_file(path: Path) -> Iterator[BinaryIO]:
    """As `atomic_file`, for bytes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise
    except OSError as error:
        raise InputError.single(str(path), f"cannot be written: {error.strerror or error}") from None


def to_data(value: Any) -> Any:
    """Plain JSON data of a spec, without empty optional fields."""
    return _ADAPTERS[type(value)].dump_python(value, mode="json", by_alias=True, exclude_none=True)


def digest(value: Any) -> str:
    """Content digest (SHA-256, 32 hex digits) of a spec; leaves out what does not change its meaning."""
    content = {key: item for key, item in to_data(value).items() if key not in _NOT_CONTENT}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def decode(kind: type[S], document: Document) -> S:
    """Check `document` against the spec class `kind`. InputError with every fault, each at its line."""
    _check_schema(kind, document)
    try:
        checked: S = _ADAPTERS[kind].validate_python(document.data)
        return checked
    except ValidationError as error:
        located = with_lines(document)
        found = error.errors(include_url=False)
        # A list whose items are wrong is also reported as too short: only the items' own faults are news.
        holders = {details["loc"][:end] for details in found for end in range(len(details["loc"]))}
        real = [details for details in found if details["type"] != "too_short" or details["loc"] not in holders]
        shown = InputError.MAX_SHOWN
        faults = [_fault(kind, located, details, hint=number < shown) for number, details in enumerate(real)]
        raise InputError(faults) from None


def _check_schema(kind: type[Any], document: Document) -> None:
    """Name a wrong or newer schema before anything else: every other fault would follow from it."""
    expected = next(str(field.default) for field in dataclasses.fields(kind) if field.name == "schema")
    stated = document.data.get("schema", expected) if isinstance(document.data, dict) else expected
    if stated == expected:
        return
    match = re.fullmatch(r"(polyreme\.[a-z]+)/(\d{1,9})", str(stated))
    name, version = expected.rsplit("/", 1)
    if match and match[1] == name and int(match[2]) > int(version):
        problem, fix = f"{stated} is newer than this polyreme reads ({expected})", "upgrade polyreme"
    else:
        problem, fix = f"{stated!r} where a {expected} file was expected", f"give a {name.split('.')[1]} file"
    raise InputError.single(with_lines(document).where(("schema",)), problem, path="schema", fix=fix)


def _fault(kind: type[Any], document: Document, details: ErrorDetails, *, hint: bool) -> Fault:
    """pydantic's error in our words; looks for what was meant only if `hint`, since that takes time."""
    path = _document_path(document.data, details["loc"], absent=details["type"] == "missing")
    value = details["input"]
    problem, fix = details["msg"], None
    match details["type"]:
        case "missing":
            problem, fix = "is required but missing", None
        case "unexpected_keyword_argument":
            problem = "is not a known key"
            names = _field_names(kind, path[:-1], _value_at(document.data, path[:-1])) if hint else []
            fix = _did_you_mean(str(path[-1]), names)
        case "union_tag_invalid":
            path, stated = (*path, "kind"), value["kind"]
            known = re.findall(r"'([^']+)'", str(details.get("ctx", {}).get("expected_tags", "")))
            problem = f"{_short(stated)} is not one of {', '.join(known)}"
            fix = _did_you_mean(str(stated), known, listed=False)
        case "enum" | "literal_error":
            expected = str(details.get("ctx", {}).get("expected", ""))
            problem = f"{_short(value)} is not one of {expected}"
            fix = _did_you_mean(str(value), re.findall(r"'([^']+)'", expected), listed=False)
        case "value_error":
            problem = details["msg"].removeprefix("Value error, ")
        case "dataclass_type":
            problem = f"got {_short(value)}, a mapping of keys to values was expected"
        case _:
            problem = f"got {_short(value)}: {problem[0].lower()}{problem[1:]}"
    return Fault(source=document.where(path), path=format_path(path), problem=problem, fix=fix)


def _document_path(data: Any, loc: tuple[int | str, ...], *, absent: bool) -> DocPath:
    """pydantic's location without the names it adds for alternatives: keep what leads through the data.

    The last part is kept as well if it is of an `absent` key.
    """
    path: list[str | int] = []
    for position, part in enumerate(loc):
        last = absent and position == len(loc) - 1
        if isinstance(data, dict) and (part in data or last):
            path.append(part)
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            path.append(part)
            data = data[part] if part < len(data) else None
    return tuple(path)


def _value_at(data: Any, path: DocPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _field_names(kind: Any, path: DocPath, value: Any) -> list[str]:
    """Keys allowed in the mapping `value` at `path` of a file of `kind`; of alternatives, in the one that it names."""
    for part in path:
        candidates = list(_dataclasses_in(kind))
        if isinstance(part, int) or not candidates:
            continue
        hints: dict[str, Any] = {}
        for candidate in candidates:
            hints |= _hints(candidate)
        kind = hints.get(part, kind)
    found = list(_dataclasses_in(kind))
    tags = {
        candidate: [field.default for field in dataclasses.fields(candidate) if field.name == "kind"]
        for candidate in found
    }
    named = [candidate for candidate in found if value.get("kind", "text") in tags[candidate]]
    return [name for candidate in named or found for name in _keys(candidate)]


@functools.cache
def _hints(spec_class: Any) -> dict[str, Any]:
    return typing.get_type_hints(spec_class, include_extras=True)


@functools.cache
def _keys(spec_class: Any) -> tuple[str, ...]:
    """Keys of a spec class as a file writes them."""
    return tuple(
        next((note.alias for note in getattr(hint, "__metadata__", ()) if getattr(note, "alias", None)), name)
        for name, hint in _hints(spec_class).items()
    )


def _dataclasses_in(kind: Any) -> Iterator[Any]:
    """The spec classes that a type may hold, through tuples, dicts, optionals and annotations."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        yield kind
    elif typing.get_origin(kind) is not None or isinstance(kind, types.UnionType):
        for argument in typing.get_args(kind):
            yield from _dataclasses_in(argument)


def _did_you_mean(word: str, known: list[str], *, listed: bool = True) -> str | None:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"known keys: {', '.join(known)}" if listed and known else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
