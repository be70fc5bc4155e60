"""Rows of a dataset that the `datasets` library reads, as documents of token ids. No torch.

Text under a tokenizer is tokenized once, by the first process that opens it, into the library's cache folder; workers
find it there. So a step's targets are counted from the lengths of lists, without a tokenizer.
"""

import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polyreme.errors import InputError
from polyreme.specs.job import HuggingFaceData
from polyreme.training.source import Tokens

BYTES = "bytes"
IDS = "input_ids"
_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".txt": "text"}
_SAMPLES = 1000
_TOKENIZED_VERSION = 1


@dataclass(frozen=True)
class DatasetRows:
    """Documents of one column: text, a byte being a token, or lists of token ids. `table` gives Arrow tables."""

    name: str
    table: Any
    column: str
    is_text: bool
    vocab_size: int
    tokenizer_digest: str

    @property
    def inventory(self) -> str:
        """The library's own name of what the table holds."""
        return f"{self.table._fingerprint} {len(self.table)}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the number of rows, evenly spread rows and the tokenizer, 32 hex digits."""
        size = len(self.table)
        total = hashlib.sha256(f"{size} {self.tokenizer_digest}".encode())
        for number in range(min(size, _SAMPLES)):
            total.update(self._tokens(number * size // min(size, _SAMPLES)).astype("<i8").tobytes())
        return total.hexdigest()[:32]

    def num_rows(self, num_tokens: int) -> int:
        """Documents."""
        del num_tokens
        return len(self.table)

    def count_targets(self, rows: Sequence[int], num_tokens: int) -> int:
        """Tokens of these documents, cut to `num_tokens` + 1, that have a next one."""
        if not rows:
            return 0
        compute = importlib.import_module("pyarrow.compute")
        column = self.table[list(rows)][self.column]
        lengths = compute.binary_length(column) if self.is_text else compute.list_value_length(column)
        return int(np.clip(lengths.fill_null(0).to_numpy() - 1, 0, num_tokens).sum())

    def read(self, row: int, num_tokens: int) -> Tokens:
        """The start of a document. InputError if a token is not below the model's `vocab_size`."""
        tokens = self._tokens(row)[: num_tokens + 1]
        wrong = np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))
        if wrong.size:
            problem = f"token {wrong[0]} of row {row} is {tokens[wrong[0]]}; the model has vocab_size {self.vocab_size}"
            raise InputError.single(self.name, problem, fix="give the model of the tokenizer that made the rows")
        return tokens

    def hold_out(self, num_rows: int, num_tokens: int) -> "tuple[DatasetRows, DatasetRows]":
        """(the rest, the last `num_rows` documents)."""
        del num_tokens
        kept, size = len(self.table) - num_rows, len(self.table)
        if kept < 1:
            problem = f"has {size} rows, evaluation.sequences are {num_rows}"
            fix = "evaluate fewer sequences, or give evaluation.data"
            raise InputError.single(self.name, problem, path="evaluation", fix=fix)
        rest, held = self.table.select(range(kept)), self.table.select(range(kept, size))
        return replace(self, table=rest), replace(self, table=held)

    def _tokens(self, row: int) -> Tokens:
        cell = self.table[row][self.column].combine_chunks()
        if self.is_text:
            return np.frombuffer((cell[0].as_py() or "").encode(), dtype=np.uint8).astype(np.int64)
        return np.asarray(cell.flatten().to_numpy(zero_copy_only=False)).astype(np.int64)


def open_dataset(data: HuggingFaceData, base: Path, vocab_size: int, field_name: str) -> DatasetRows:
    """Open the dataset of `data`, paths relative to `base`; tokenize it if needed. InputError says what is wrong."""
    datasets = _library("datasets", field_name)
    name = data.dataset or ", ".join(data.files)
    with _explained(name, f"{field_name}.{'dataset' if data.dataset else 'files'}"):
        table = _load(datasets, data, base, field_name)
    kind = _column_kind(table, data.column, name, field_name)
    tokenizer = data.tokenizer
    if (kind == IDS) != (tokenizer is None):
        problem = "is not needed, the column holds token ids" if tokenizer else "is needed, the column holds text"
        fix = "remove it" if tokenizer else f"give {BYTES}, the path of a tokenizer.json, or a name on the hub"
        raise InputError.single("job", problem, path=f"{field_name}.tokenizer", fix=fix)
    if not len(table):
        raise InputError.single("job", f"{name} has no rows", path=field_name)
    column, digest = data.column, ""
    if tokenizer not in (None, BYTES):
        encode, digest = _tokenizer(str(tokenizer), base, vocab_size, field_name)
        table, column = _tokenized(datasets, table, data.column, encode, digest), IDS
    return DatasetRows(name, table.with_format("arrow"), column, tokenizer == BYTES, vocab_size, digest)


def _library(module: str, field_name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        problem = f"kind huggingface needs the package {error.name}, which is not installed"
        raise InputError.single("job", problem, path=field_name, fix='pip install "polyreme[huggingface]"') from None


@contextmanager
def _explained(name: str, path: str) -> Iterator[None]:
    """Turns whatever a library raises about what it was given into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the libraries raise bare Exception too
        cause = error.__cause__ or error
        problem = f"cannot be read: {' '.join(str(cause).split()) or type(cause).__name__}"
        raise InputError.single(name, problem, path=path, fix="check the name and that it is complete") from None


def _load(datasets: Any, data: HuggingFaceData, base: Path, field_name: str) -> Any:
    """The split that `data` names, as a map-style dataset."""
    if data.files:
        paths = [base / path for path in data.files]
        formats = {_FORMATS.get(path.suffix.lower()) for path in paths}
        form = formats.pop()
        if formats or form is None:
            problem = f"{', '.join(data.files)} are not of one format"
            raise InputError.single("job", problem, path=f"{field_name}.files", fix=f"one of {', '.join(_FORMATS)}")
        files = {data.split.partition("[")[0]: [str(path.resolve()) for path in paths]}
        return datasets.load_dataset(form, data_files=files, split=data.split)
    folder = base / str(data.dataset)
    if not any((folder / name).exists() for name in ("state.json", "dataset_dict.json")):
        given = str(folder.resolve()) if folder.exists() else data.dataset
        return datasets.load_dataset(given, data.config, split=data.split)
    found = datasets.load_from_disk(str(folder))
    splits = found if isinstance(found, dict) else {str(found.split or "train"): found}
    if data.split not in splits:
        problem = f"{folder} has no split {data.split!r}"
        raise InputError.single("job", problem, path=f"{field_name}.split", fix=f"it has {', '.join(splits)}")
    return splits[data.split]


def _column_kind(table: Any, column: str, name: str, field_name: str) -> str:
    """`input_ids` or `bytes`: whether the column holds lists of ids or text."""
    types = importlib.import_module("pyarrow").types
    where = f"{field_name}.column"
    if column not in table.column_names:
        problem, fix = f"{name} has no column {column!r}", f"it has {', '.join(table.column_names)}"
        raise InputError.single("job", problem, path=where, fix=fix)
    held = table.features.arrow_schema.field(column).type
    if types.is_string(held) or types.is_large_string(held):
        return BYTES
    if (types.is_list(held) or types.is_large_list(held)) and types.is_integer(held.value_type):
        return IDS
    raise InputError.single(
        "job", f"{column!r} of {name} holds {held}", path=where, fix="name one of text or token ids"
    )


def _tokenizer(given: str, base: Path, vocab_size: int, field_name: str) -> tuple[Callable[[Any], Any], str]:
    """(texts of a batch of rows -> lists of ids, digest) of a tokenizer file, a folder with one or a hub name."""
    library, where = _library("tokenizers", field_name), f"{field_name}.tokenizer"
    path = base / given
    path = path / "tokenizer.json" if path.is_dir() else path
    with _explained(given, where):
        local = path.exists() or path.suffix == ".json"
        text = path.read_text(encoding="utf-8") if local else library.Tokenizer.from_pretrained(given).to_str()
        tokenizer = library.Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if size > vocab_size:
        problem = f"{given} has {size} tokens, the model has vocab_size {vocab_size}"
        raise InputError.single("job", problem, path=where, fix="give a model with at least as many")
    digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:32]
    return lambda texts: [item.ids for item in tokenizer.encode_batch([text or "" for text in texts])], digest


def _tokenized(datasets: Any, table: Any, column: str, encode: Callable[[Any], Any], digest: str) -> Any:
    """`table` with one column of ids, from the cache if it was made before."""
    identity = f"{_TOKENIZED_VERSION} {table._fingerprint} {column} {digest}"
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:32]
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "polyreme"
    with _explained(str(folder), "cache"):
        folder.mkdir(parents=True, exist_ok=True)
        return table.map(
            lambda batch: {IDS: encode(batch[column])},
            batched=True,
            remove_columns=table.column_names,
            cache_file_name=str(folder / f"{fingerprint}.arrow"),
            new_fingerprint=fingerprint,
            load_from_cache_file=True,
            desc="tokenizing",
        )
