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
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from polyreme.errors import Fault, InputError
from polyreme.specs.job import TextData

MIN_VOCAB = 256
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", ".git", "node_modules", "test", "tests"})


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes [start, start + num_tokens] of a document, of which `num_targets` have a next byte to predict."""

    document: int
    start: int
    num_targets: int


@dataclass(frozen=True)
class Corpus:
    """Documents with their sizes, in a fixed order."""

    paths: tuple[Path, ...]
    sizes: tuple[int, ...]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(size - 1 for size in self.sizes))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every document's size and bytes, 32 hex digits."""
        total = hashlib.sha256()
        for path, size in zip(self.paths, self.sizes, strict=True):
            total.update(size.to_bytes(8, "little"))
            total.update(path.read_bytes())
        return total.hexdigest()[:32]

    def window(self, seed: int, step: int, sequence: int, num_tokens: int) -> Window:
        """Where sequence number `sequence` of a step's global batch is taken from."""
        drawn = hashlib.blake2b(f"{seed}/{step}/{sequence}".encode(), digest_size=8).digest()
        place = int.from_bytes(drawn, "little") % self._ends[-1]
        document = bisect_right(self._ends, place)
        start = place - (self._ends[document - 1] if document else 0)
        return Window(document, start, min(num_tokens, self.sizes[document] - 1 - start))

    def count_targets(self, seed: int, step: int, num_sequences: int, num_tokens: int) -> int:
        """Tokens that count in a step's whole batch: what its loss is divided by."""
        return sum(self.window(seed, step, index, num_tokens).num_targets for index in range(num_sequences))

    def read(self, window: Window) -> bytes:
        """The window's bytes: its inputs and, one further, its targets."""
        with self.paths[window.document].open("rb") as file:
            return os.pread(file.fileno(), window.num_targets + 1, window.start)


def open_corpus(data: TextData, base: Path) -> Corpus:
    """Find all documents of `data`, paths relative to `base`. InputError names what is missing or holds no text."""
    roots = [base / path for path in data.paths] or [Path(sysconfig.get_paths()["stdlib"])]
    faults = [
        Fault(source="job", path=f"data.paths[{index}]", problem=f"{root} does not exist")
        for index, root in enumerate(roots)
        if not root.exists()
    ]
    if faults:
        raise InputError(faults)
    found = [(path, path.stat().st_size) for root in roots for path in _documents(root, data.suffixes)]
    documents = [(path, size) for path, size in found if size > 1]
    if not documents:
        where = ", ".join(str(root) for root in roots)
        raise InputError.single("job", f"no text found in {where}", path="data", fix=f"suffixes: {data.suffixes}")
    return Corpus(tuple(path for path, _ in documents), tuple(size for _, size in documents))


def _documents(root: Path, suffixes: Sequence[str]) -> list[Path]:
    if root.is_file():
        return [root]
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED_FOLDERS)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(tuple(suffixes))]
    return [path for path in found if path.is_file()]
