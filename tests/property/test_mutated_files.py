"""Whatever is done to a file, reading it ends soon, in a value or an InputError."""

import copy
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from spec_samples import SAMPLES, Sample

from polyreme.errors import InputError

MUTANTS_PER_KIND = 70
SLOWEST_S = 10.0  # a hang, not a slow machine
HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**15 + 1, 10**30, 0.5, 1e308, float("inf"), float("-inf"), float("nan"), "", "x", "nein"),
    *("node[0-999999]", "[9-0]", "[0-", "\x00", "\u202e\U0001f6a3", "a" * 5000, [], {}, [[]], [1, 2, 3], {"": 1}),
    *({"a": {"b": []}}, ["x"] * 300, {str(number): number for number in range(300)}, "!!python/object:os.system"),
)
JUNK = (b"\x00", b"\xff\xfe", b"\t", b"\r\n", b"\xef\xbb\xbf", b"&a [*a]", b"*b", b"---\n", b"!!x ", b"{", b"]", b'"')


def _paths(data: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*prefix, key)
        yield from _paths(value, (*prefix, key))


def _damaged_data(sample: Sample, random_: random.Random) -> bytes:
    data = copy.deepcopy(yaml.safe_load(sample.text))
    for _ in range(random_.randint(1, 3)):
        path = random_.choice(list(_paths(data)) or [()])
        if not path:
            break
        holder = data
        for key in path[:-1]:
            holder = holder[key]
        match random_.randrange(4):
            case 0:
                del holder[path[-1]]
            case 1 if isinstance(holder, dict):
                holder[str(path[-1]) + random_.choice(("s", "x", " ", "\u00e4"))] = holder.pop(path[-1])
            case _:
                holder[path[-1]] = copy.deepcopy(random_.choice(HOSTILE_VALUES))
    as_json = sample.file.endswith(".json")
    text = json.dumps(data) if as_json else yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
    return text.encode()


def _damaged_text(sample: Sample, random_: random.Random) -> bytes:
    content = sample.text.encode()
    lines = content.splitlines(keepends=True)
    place, line = random_.randrange(len(content)), random_.randrange(len(lines))
    match random_.randrange(6):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + random_.choice(JUNK) + content[place:]
        case 2:
            return b"".join([*lines[:line], lines[line], *lines[line:]])
        case 3:
            return b"".join([*lines[:line], *lines[line + 1 :]])
        case 4:
            return content.replace(b"\n", b"\r\n")
        case _:
            damaged = bytearray(content)
            for _ in range(random_.randint(1, 5)):
                damaged[random_.randrange(len(damaged))] = random_.randrange(256)
            return bytes(damaged)


def _read(sample: Sample, path: Path, content: bytes) -> InputError | None:
    """The error of reading `content`, if any; fails the test on another error or a slow one."""
    path.write_bytes(content)
    started, found = time.process_time(), None
    try:
        sample.load(path)
    except InputError as error:
        found = error
    elapsed_s = time.process_time() - started
    assert elapsed_s < SLOWEST_S, f"{elapsed_s} s for {content[:80]!r}"
    if found is not None:
        assert all(fault.problem and str(path) in fault.source for fault in found.faults), str(found)
        size = len(str(found))
        assert size < 20_000
    return found


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_damaged_file_loads_or_gives_an_input_error(kind: str, tmp_path: Path) -> None:
    sample, random_ = SAMPLES[kind], random.Random(f"damage {kind}")  # noqa: S311
    refused = 0
    for number in range(MUTANTS_PER_KIND):
        content = (_damaged_data if number % 2 else _damaged_text)(sample, random_)
        try:
            refused += _read(sample, tmp_path / sample.file, content) is not None
        except Exception as error:
            error.add_note(f"mutant {number}: {content[:3000]!r}")
            raise
    assert refused > MUTANTS_PER_KIND // 2


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize(
    "change", [lambda text: text, lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n")]
)
def test_an_undamaged_file_loads(kind: str, change: Any, tmp_path: Path) -> None:
    sample = SAMPLES[kind]
    assert _read(sample, tmp_path / sample.file, change(sample.text).encode()) is None


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{previous}'] * 10)}]\n"
    for previous, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE_TEXTS = {
    "empty": "",
    "blank": " \n\n",
    "a comment": "# nothing\n",
    "null": "null",
    "a word": "polyreme",
    "a number": "1e9",
    "a list": "[1, 2]",
    "open lists": "[" * 100_000,
    "closed lists": "[" * 100_000 + "]" * 100_000,
    "open mappings": '{"a":' * 100_000,
    "list items": "- " * 100_000,
    "a long number": '{"schema": ' + "9" * 100_000 + "}",
    "a long number as model": '{"name": "x", "num_layers": ' + "9" * 100_000 + "}",
    "a long float": '{"num_layers": 1' + "0" * 100_000 + ".0}",
    "a large exponent": '{"num_layers": 1e999999999}',
    "many keys": "{" + ", ".join(f'"k{number}": 1' for number in range(20_000)) + "}",
    "one key many times": "{" + ", ".join(['"k": 1'] * 20_000) + "}",
    "control characters": '{"name": "\x01\x02\x7f"}',
    "a null byte": "name: \x00",
    "a lone surrogate": '{"name": "\\ud800", "family": "\\udfff"}',
    "a lone surrogate as key": '{"\\ud800": 1}',
    "a hidden text direction": '{"\u202ename": 1}',
    "two documents": "name: a\n---\nname: b\n",
    "json twice": '{"name": 1}{"name": 2}',
    "a tab": "name:\n\t- a\n",
    "python object": "!!python/object/apply:os.system [echo]",
    "python name": "name: !!python/name:os.system",
    "binary tag": "name: !!binary aGVsbG8=",
    "set tag": "name: !!set {a, b}",
    "own tag": "name: !x y",
    "a false int": "name: !!int x",
    "a false null": "name: !!null x",
    "a timestamp": "name: !!timestamp 2001-01-01",
    "an alias bomb": BOMB,
    "a loop": "a: &a [*a]\n",
    "a loop of mappings": "&a {a: *a}",
    "an unknown alias": "a: *b\n",
    "a merge key": "a: &a {b: 1}\n<<: *a\n",
    "a list as key": "? [a, b]\n: 1\n",
    "a mapping as key": "{a: 1}: 2\n",
    "a directive": "%YAML 9.9\n---\nname: a\n",
    "open quote": 'name: "a\n',
}


@pytest.mark.parametrize("file", ["model.yaml", "cluster.yaml", "job.yaml", "config.json", "plan.json"])
@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_a_hostile_file_gives_an_input_error(name: str, file: str, tmp_path: Path) -> None:
    load = next(sample.load for sample in SAMPLES.values() if sample.file == file)
    error = _read(Sample(file, "", load), tmp_path / file, HOSTILE_TEXTS[name].encode())
    assert error is not None
    str(error).encode()
