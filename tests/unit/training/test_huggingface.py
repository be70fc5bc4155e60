"""Datasets of the real library, written to a folder; nothing is fetched."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from polyreme.errors import InputError
from polyreme.specs.job import HuggingFaceData
from polyreme.training.huggingface import DatasetRows, open_dataset

TEXTS = ["one two three", "two", "", "three three one two one", "wörld two"]
WORDS = {"[UNK]": 0, "one": 1, "two": 2, "three": 3}
IDS = [[1, 2, 3], [2], [], [3, 3, 1, 2, 1], [0, 2]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the library's cache inside the test, and the library off the network and quiet."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    datasets.disable_progress_bars()
    return folder


def opened(base: Path, vocab_size: int = 256, **keys: Any) -> DatasetRows:
    return open_dataset(HuggingFaceData(**keys), base, vocab_size, "data")


def contents(rows: DatasetRows, num_tokens: int = 100) -> list[list[int]]:
    found = [rows.read(row, num_tokens).tolist() for row in range(rows.num_rows(num_tokens))]
    counted = [rows.count_targets([row], num_tokens) for row in range(len(found))]
    assert counted == [max(len(tokens) - 1, 0) for tokens in found]
    assert rows.count_targets([*range(len(found)), 0], num_tokens) == sum(counted) + counted[0]
    return found


def write_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))  # noqa: S106 - not a secret
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))


def write_files(folder: Path) -> dict[str, tuple[str, ...]]:
    table = datasets.Dataset.from_dict({"text": TEXTS, "input_ids": IDS})
    table.to_parquet(str(folder / "a.parquet"))
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"text": text, "input_ids": ids}) + "\n" for text, ids in zip(TEXTS, IDS, strict=True)),
        encoding="utf-8",
    )
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return {"parquet": ("a.parquet",), "json": ("a.jsonl",), "text": ("a.txt",)}


@pytest.mark.parametrize("form", ["parquet", "json", "text"])
def test_local_files_are_read_as_bytes_words_and_ids(form: str, tmp_path: Path) -> None:
    files = write_files(tmp_path)[form]
    assert contents(opened(tmp_path, files=files, tokenizer="bytes")) == [list(text.encode()) for text in TEXTS]
    (tmp_path / "folder").mkdir()
    write_tokenizer(tmp_path / "folder" / "tokenizer.json")
    for tokenizer in ("folder", "folder/tokenizer.json"):
        assert contents(opened(tmp_path, files=files, tokenizer=tokenizer)) == IDS
    if form != "text":
        assert contents(opened(tmp_path, files=files, column="input_ids")) == IDS


def test_a_row_is_cut_to_the_length_of_a_sequence(tmp_path: Path) -> None:
    rows = opened(tmp_path, files=write_files(tmp_path)["parquet"], column="input_ids")
    assert contents(rows, 2) == [[1, 2, 3], [2], [], [3, 3, 1], [0, 2]]
    assert rows.count_targets([3, 0], 2) == 4


def test_datasets_on_disk_are_read_by_split(tmp_path: Path) -> None:
    one, two = (datasets.Dataset.from_dict({"input_ids": ids}) for ids in (IDS, IDS[::-1]))
    datasets.DatasetDict({"train": one, "validation": two}).save_to_disk(str(tmp_path / "both"))
    one.save_to_disk(str(tmp_path / "one"))
    assert contents(opened(tmp_path, dataset="both", column="input_ids")) == IDS
    assert contents(opened(tmp_path, dataset="both", split="validation", column="input_ids")) == IDS[::-1]
    assert contents(opened(tmp_path, dataset="one", column="input_ids")) == IDS
    with pytest.raises(InputError, match=r"data\.split: .*no split 'test'; it has train, validation"):
        opened(tmp_path, dataset="both", split="test", column="input_ids")
    with pytest.raises(InputError, match=r"data\.split: .*no split 'validation'; it has train"):
        opened(tmp_path, dataset="one", split="validation", column="input_ids")
    with pytest.raises(InputError, match=r"data\.column: .*has no column 'text'; it has input_ids"):
        opened(tmp_path, dataset="one", tokenizer="bytes")


def test_text_is_tokenized_once_and_found_again(tmp_path: Path, cache: Path) -> None:
    keys: dict[str, Any] = {"files": write_files(tmp_path)["json"], "tokenizer": "tokenizer.json"}
    write_tokenizer(tmp_path / "tokenizer.json")
    first = opened(tmp_path, **keys)
    (made,) = (cache / "polyreme").iterdir()
    before = made.stat().st_mtime_ns
    second = opened(tmp_path, **keys)
    assert [path.stat().st_mtime_ns for path in (cache / "polyreme").iterdir()] == [before]
    assert (first.digest, first.inventory) == (second.digest, second.inventory)
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text.replace('"two": 2', '"zwei": 2'), encoding="utf-8")
    third = opened(tmp_path, **keys)
    assert contents(third)[1] == [0]
    assert third.digest != first.digest
    assert third.inventory != first.inventory


def test_empty_cells_and_parts_of_a_split_are_read(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_dict({"text": ["ab", None, "abcd"], "input_ids": [[1, 2], None, [3, 4, 5]]})
    whole.to_parquet(str(tmp_path / "a.parquet"))
    whole.select([2, 1, 0]).save_to_disk(str(tmp_path / "reordered"))
    write_tokenizer(tmp_path / "t.json")
    assert contents(opened(tmp_path, files=("a.parquet",), tokenizer="bytes")) == [[97, 98], [], [97, 98, 99, 100]]
    assert contents(opened(tmp_path, files=("a.parquet",), tokenizer="t.json")) == [[0], [], [0]]
    assert contents(opened(tmp_path, files=("a.parquet",), split="train[1:]", column="input_ids")) == [[], [3, 4, 5]]
    assert contents(opened(tmp_path, dataset="reordered", column="input_ids")) == [[3, 4, 5], [], [1, 2]]


def test_the_last_rows_are_held_out(tmp_path: Path) -> None:
    whole = opened(tmp_path, files=write_files(tmp_path)["parquet"], column="input_ids")
    for count in range(1, 5):
        rest, held = whole.hold_out(count, 8)
        assert contents(rest) == IDS[:-count]
        assert contents(held) == IDS[-count:]
    with pytest.raises(InputError, match=r"has 5 rows, evaluation\.sequences are 5"):
        whole.hold_out(5, 8)


def test_an_id_outside_the_vocabulary_is_named_with_its_row(tmp_path: Path) -> None:
    files = write_files(tmp_path)["parquet"]
    rows = opened(tmp_path, vocab_size=3, files=files, column="input_ids")
    assert rows.read(4, 9).tolist() == [0, 2]
    with pytest.raises(InputError, match=r"a\.parquet: token 2 of row 0 is 3; the model has vocab_size 3"):
        rows.read(0, 9)
    write_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match=r"data\.tokenizer: .* has 4 tokens, the model has vocab_size 3"):
        opened(tmp_path, vocab_size=3, files=files, tokenizer="tokenizer.json")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such file": ({"files": ("b.parquet",)}, r"b\.parquet: data\.files: cannot be read: "),
    "no such dataset": ({"dataset": "./nowhere"}, r"nowhere: data\.dataset: cannot be read: "),
    "not on the hub": ({"dataset": "nobody/nothing"}, r"nobody/nothing: data\.dataset: cannot be read: .*reach"),
    "mixed formats": ({"files": ("a.parquet", "a.txt")}, r"data\.files: .* are not of one format"),
    "unknown format": ({"files": ("a.csv",)}, r"data\.files: .* not of one format; one of \.parquet"),
    "damaged": ({"files": ("damaged.jsonl",)}, r"damaged\.jsonl: data\.files: cannot be read: .*JSON"),
    "a column of numbers": ({"files": ("a.parquet",), "column": "number"}, r"data\.column: 'number' .* holds int64"),
    "text without tokenizer": ({"files": ("a.parquet",), "tokenizer": None}, r"data\.tokenizer: is needed"),
    "ids with tokenizer": ({"files": ("a.parquet",), "column": "input_ids"}, r"data\.tokenizer: is not needed"),
    "no such tokenizer": ({"files": ("a.parquet",), "tokenizer": "t.json"}, r"data\.tokenizer: .*No such file"),
    "no tokenizer": ({"files": ("a.parquet",), "tokenizer": "damaged.jsonl"}, r"data\.tokenizer: cannot be read: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used_is_said(name: str, tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"text": TEXTS, "input_ids": IDS, "number": [1, 2, 3, 4, 5]})
    table.to_parquet(str(tmp_path / "a.parquet"))
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")
    (tmp_path / "damaged.jsonl").write_text("{", encoding="utf-8")
    keys, expected = WRONG[name]
    with pytest.raises(InputError, match=expected):
        opened(tmp_path, **{"tokenizer": "bytes", **keys})


def test_without_the_library_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r'needs the package datasets.*pip install "polyreme\[huggingface\]"'):
        opened(tmp_path, dataset="x", tokenizer="bytes")
