"""Byte-level text: which files, which bytes of them a step uses, and a digest of all of it. No torch.

A sequence is a window of one document at a place that depends on seed, step and position in the batch alone, never on
the plan. A window that runs over the end of its document is padded and the padding does not count, so microbatches
hold different numbers of tokens.
"""

import hashlib
import os
import sysconfig
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np

from polyreme.errors import Fault, InputError
from polyreme.specs.job import TextData
from polyreme.training.reading import explained, read_blocks, read_bytes
from polyreme.training.source import Tokens

MIN_VOCAB = 256
HELD_OUT_FRACTION = 0.05
"""Share of the bytes that is kept from training when the job evaluates on a part of its own data."""
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", ".git", "node_modules", "test", "tests"})


@dataclass(frozen=True, slots=True)
class Document:
    """Bytes [start, start + size) of a file that had `file_bytes` when it was found; `name` is relative to its root."""

    path: Path
    name: str
    start: int
    size: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes [start, start + num_targets] of a document, all but the last of which have a next byte to predict."""

    document: int
    start: int
    num_targets: int


@dataclass(frozen=True)
class Corpus:
    """A `DataSource` of documents in a fixed order."""

    documents: tuple[Document, ...]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(document.size - 1 for document in self.documents))

    @property
    def inventory(self) -> str:
        """Paths and sizes."""
        return "\n".join(f"{d.path} {d.start} {d.size} {d.file_bytes}" for d in self.documents)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every document's size and bytes, 32 hex digits."""
        total = hashlib.sha256()
        for document in self.documents:
            total.update(document.size.to_bytes(8, "little"))
            stop = document.start + document.size
            for content in read_blocks(document.path, document.start, stop, document.file_bytes):
                total.update(content)
        return total.hexdigest()[:32]

    def window(self, seed: int, step: int, sequence: int, num_tokens: int) -> Window:
        """Where sequence number `sequence` of a step's global batch is taken from."""
        drawn = hashlib.blake2b(f"{seed}/{step}/{sequence}".encode(), digest_size=8).digest()
        place = int.from_bytes(drawn, "little") % self._ends[-1]
        document = bisect_right(self._ends, place)
        start = place - (self._ends[document - 1] if document else 0)
        return Window(document, start, min(num_tokens, self.documents[document].size - 1 - start))

    def count_targets(self, seed: int, step: int, num_sequences: int, num_tokens: int) -> int:
        """Tokens that count in a step's whole batch: what its loss is divided by."""
        return sum(self.window(seed, step, index, num_tokens).num_targets for index in range(num_sequences))

    def read(self, window: Window) -> bytes:
        """The window's bytes: its inputs and, one further, its targets. InputError if the file has changed."""
        document = self.documents[window.document]
        first = document.start + window.start
        return read_bytes(document.path, first, window.num_targets + 1, document.file_bytes)

    def read_sequence(self, seed: int, step: int, sequence: int, num_sequences: int, num_tokens: int) -> Tokens:
        """Sequence number `sequence` of a step; a byte is a token."""
        del num_sequences
        content = self.read(self.window(seed, step, sequence, num_tokens))
        return np.frombuffer(content, dtype=np.uint8).astype(np.int64)

    def hold_out(self) -> "tuple[Corpus, Corpus]":
        """(the rest, HELD_OUT_FRACTION of the bytes), without a byte in common.

        Whole documents, in an order that a hash of their names decides, as far as they fit; if none does, the end of
        the largest. InputError if that leaves nothing to train on.
        """
        by_file = {document.path.resolve(): document for document in self.documents}  # one may be named twice
        room = HELD_OUT_FRACTION * sum(document.size for document in by_file.values())
        held = set()
        for file, document in sorted(by_file.items(), key=lambda item: _rank(item[1])):
            if document.size <= room:
                room -= document.size
                held.add(file)
        if held:
            rest = [document for document in self.documents if document.path.resolve() not in held]
            return Corpus(tuple(rest)), Corpus(tuple(by_file[file] for file in by_file if file in held))
        file, largest = max(by_file.items(), key=lambda item: item[1].size)
        if largest.size < 4:
            problem = f"{largest.size} bytes are too few to evaluate and train on"
            raise InputError.single(str(largest.path), problem, path="evaluation", fix="give evaluation.data")
        end_size = max(2, int(largest.size * HELD_OUT_FRACTION))
        size = largest.size - end_size
        rest = [replace(d, size=size) if d.path.resolve() == file else d for d in self.documents]
        return Corpus(tuple(rest)), Corpus((replace(largest, start=size, size=end_size),))


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """A `DataSource` for evaluation: the same `num_sequences` whatever the seed; what lies behind the last is empty."""

    corpus: Corpus
    num_sequences: int

    @property
    def digest(self) -> str:
        """That of the corpus."""
        return self.corpus.digest

    @property
    def inventory(self) -> str:
        """That of the corpus."""
        return self.corpus.inventory

    def count_targets(self, seed: int, step: int, num_sequences: int, num_tokens: int) -> int:
        """Tokens that count in a step; 0 behind the last sequence."""
        del seed
        first = step * num_sequences
        places = range(first, min(first + num_sequences, self.num_sequences))
        return sum(self.corpus.window(0, 0, place, num_tokens).num_targets for place in places)

    def read_sequence(self, seed: int, step: int, sequence: int, num_sequences: int, num_tokens: int) -> Tokens:
        """Sequence number `sequence` of a step."""
        del seed
        place = step * num_sequences + sequence
        if place >= self.num_sequences:
            return np.zeros(0, dtype=np.int64)
        return self.corpus.read_sequence(0, 0, place, self.num_sequences, num_tokens)


def _rank(document: Document) -> bytes:
    return hashlib.sha256(f"{document.name} {document.size}".encode(errors="surrogateescape")).digest()


def open_corpus(data: TextData, base: Path, field_name: str = "data") -> Corpus:
    """Find all documents of `data`, paths relative to `base`. InputError names what is missing or holds no text."""
    roots = [base / path for path in data.paths] or [Path(sysconfig.get_paths()["stdlib"])]
    with explained(base):
        faults = [
            Fault(source="job", path=f"{field_name}.paths[{index}]", problem=f"{root} does not exist")
            for index, root in enumerate(roots)
            if not root.exists()
        ]
        if faults:
            raise InputError(faults)
        found = [_document(path, root) for root in roots for path in _documents(root, data.suffixes)]
    documents = tuple(document for document in found if document.size > 1)
    if not documents:
        where = ", ".join(str(root) for root in roots)
        raise InputError.single("job", f"no text found in {where}", path=field_name, fix=f"suffixes: {data.suffixes}")
    return Corpus(documents)


def _document(path: Path, root: Path) -> Document:
    size = path.stat().st_size
    return Document(path, path.relative_to(root).as_posix() if path != root else path.name, 0, size, size)


def _documents(root: Path, suffixes: Sequence[str]) -> list[Path]:
    if root.is_file():
        return [root]
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root, onerror=_raise):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED_FOLDERS)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(tuple(suffixes))]
    return [path for path in found if path.is_file()]


def _raise(error: OSError) -> None:
    raise error
