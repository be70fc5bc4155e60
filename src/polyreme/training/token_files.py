"""Files of token ids, cut into sequences one after another; read in place, whatever their size. No torch.

A stream is a range of tokens that sequences do not leave. Sequence n of a stream has its tokens [n T, n T + T + 1): the
last token of one is the first of the next, so every token but the first is a target once. The end of a stream gives a
shorter sequence.
"""

import hashlib
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np

from polyreme.errors import Fault, InputError
from polyreme.specs.job import TokenData
from polyreme.training.reading import explained, read_bytes
from polyreme.training.source import Tokens

_NPY_TYPES = frozenset({"uint8", "uint16", "uint32", "int32", "int64"})
_DIGEST_BLOCKS, _DIGEST_BLOCK_BYTES = 256, 2**16
"""A file is hashed whole if it has no more than these blocks, and at so many evenly spread places otherwise."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """`num_tokens` ids from byte `start_byte` on; the file had `file_bytes` when it was found."""

    path: Path
    dtype: str
    start_byte: int
    num_tokens: int
    file_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one id."""
        return np.dtype(self.dtype).itemsize

    def read(self, start: int, stop: int, vocab_size: int) -> Tokens:
        """Ids [start, stop). InputError if one is not below `vocab_size`."""
        first, width = self.start_byte + start * self.token_bytes, self.token_bytes
        content = read_bytes(self.path, first, (stop - start) * width, self.file_bytes)
        tokens = np.frombuffer(content, dtype=self.dtype).astype(np.int64)
        wrong = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
        if wrong.size:
            place = start + int(wrong[0])
            problem = f"token {place} (byte {self.start_byte + place * width}) is {tokens[wrong[0]]}"
            raise InputError.single(
                str(self.path),
                f"{problem}; the model has vocab_size {vocab_size}",
                fix="give the model of the tokenizer that made the file, and check data.dtype",
            )
        return tokens

    def read_samples(self) -> Iterator[bytes]:
        """What the digest is made from."""
        num_bytes = self.num_tokens * self.token_bytes
        blocks = min(-(-num_bytes // _DIGEST_BLOCK_BYTES), _DIGEST_BLOCKS)
        for block in range(blocks):
            start = block * (num_bytes - _DIGEST_BLOCK_BYTES) // max(blocks - 1, 1)
            count = min(_DIGEST_BLOCK_BYTES, num_bytes - start)
            yield read_bytes(self.path, self.start_byte + start, count, self.file_bytes)


@dataclass(frozen=True)
class TokenRows:
    """The sequences of token files. With `eos_token`, a file that does not end with it counts as if it did."""

    name: str
    files: tuple[TokenFile, ...]
    eos_token: int | None
    vocab_size: int
    file_ends: tuple[int, ...]
    """Tokens of the first file, of the first two, and so on, with an added `eos_token` each."""
    streams: tuple[tuple[int, int], ...]
    """Ranges of the tokens of all files one after another."""
    _row_ends: dict[int, list[int]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def inventory(self) -> str:
        """Paths and sizes."""
        return "\n".join([str(self.streams), *(f"{file.path} {file.file_bytes}" for file in self.files)])

    @cached_property
    def digest(self) -> str:
        """SHA-256 over sizes, contents and streams, 32 hex digits; of a large file, over evenly spread samples."""
        total = hashlib.sha256(f"{self.eos_token} {self.streams}".encode())
        for file in self.files:
            total.update(f"{file.dtype} {file.num_tokens}".encode())
            for content in file.read_samples():
                total.update(content)
        return total.hexdigest()[:32]

    def num_rows(self, num_tokens: int) -> int:
        """Sequences in all streams."""
        return self._ends(num_tokens)[-1]

    def count_targets(self, rows: Sequence[int], num_tokens: int) -> int:
        """Tokens of these sequences that have a next one in their stream; reads no file."""
        return sum(stop - start - 1 for start, stop in (self.span(row, num_tokens) for row in rows))

    def read(self, row: int, num_tokens: int) -> Tokens:
        """One sequence."""
        start, stop = self.span(row, num_tokens)
        parts = []
        while start < stop:
            number = bisect_right(self.file_ends, start)
            file, begin = self.files[number], self.file_ends[number - 1] if number else 0
            end = min(stop, begin + file.num_tokens)
            if start < end:
                parts.append(file.read(start - begin, end - begin, self.vocab_size))
            if end < stop and end < self.file_ends[number]:
                parts.append(np.array([self.eos_token], dtype=np.int64))
            start = min(stop, self.file_ends[number])
        return np.concatenate(parts)

    def span(self, row: int, num_tokens: int) -> tuple[int, int]:
        """Where sequence `row` stands among the tokens of all files: [start, stop)."""
        ends = self._ends(num_tokens)
        number = bisect_right(ends, row)
        first, last = self.streams[number]
        start = first + (row - (ends[number - 1] if number else 0)) * num_tokens
        return start, min(start + num_tokens + 1, last)

    def hold_out(self, num_rows: int, num_tokens: int) -> "tuple[TokenRows, TokenRows]":
        """(the rest, the last `num_rows` sequences); a stream that is cut through loses no token and shares none."""
        rest, held = list(self.streams), []
        while num_rows and rest:
            start, stop = rest.pop()
            rows = _num_rows(stop - start, num_tokens)
            if rows > num_rows:
                cut = stop - num_rows * num_tokens - 1
                rest += [(start, cut)] if cut - start > 1 else []
                start, rows = cut, num_rows
            held.append((start, stop))
            num_rows -= rows
        if not rest:
            raise InputError.single(
                self.name,
                "holds too few tokens for evaluation.sequences and training",
                path="evaluation",
                fix="evaluate fewer sequences, or give evaluation.data",
            )
        return replace(self, streams=tuple(rest), _row_ends={}), replace(self, streams=tuple(held[::-1]), _row_ends={})

    def _ends(self, num_tokens: int) -> list[int]:
        if num_tokens not in self._row_ends:
            lengths = (stop - start for start, stop in self.streams)
            self._row_ends[num_tokens] = list(accumulate(_num_rows(length, num_tokens) for length in lengths))
        return self._row_ends[num_tokens]


def _num_rows(length: int, num_tokens: int) -> int:
    return -(-(length - 1) // num_tokens)


def open_token_files(data: TokenData, base: Path, vocab_size: int, field_name: str) -> TokenRows:
    """Find the files of `data`, paths relative to `base`. InputError names what is missing or holds no token ids."""
    roots = [base / path for path in data.paths]
    with explained(base):
        faults = [
            Fault(source="job", path=f"{field_name}.paths[{index}]", problem=f"{root} does not exist")
            for index, root in enumerate(roots)
            if not root.exists()
        ]
        if faults:
            raise InputError(faults)
        files = [_describe(path, data.dtype) for root in roots for path in _files(root)]
    paths = Counter(file.path.resolve() for file in files)
    repeated = next((path for path, times in paths.items() if times > 1), None)
    if repeated is not None:
        raise InputError.single("job", f"{repeated} is named twice", path=f"{field_name}.paths", fix="name it once")
    files = [file for file in files if file.num_tokens > (data.eos_token is None)]
    name = ", ".join(str(root) for root in roots)
    lengths = []
    for file in files:
        ended = data.eos_token is None or _last_token(file) == data.eos_token
        lengths.append(file.num_tokens + (not ended))
    ends = tuple(accumulate(lengths))
    if not files or ends[-1] < 2:
        fix = "of a folder, files named .bin and .npy are taken"
        raise InputError.single("job", f"no tokens found in {name}", path=field_name, fix=fix)
    streams = tuple(zip((0, *ends[:-1]), ends, strict=True)) if data.eos_token is None else ((0, ends[-1]),)
    return TokenRows(name, tuple(files), data.eos_token, vocab_size, ends, streams)


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root, onerror=_raise):
        subfolders.sort()
        found += [Path(folder, name) for name in sorted(names) if name.endswith((".bin", ".npy"))]
    return [path for path in found if path.is_file()]


def _raise(error: OSError) -> None:
    raise error


def _last_token(file: TokenFile) -> int:
    last = file.start_byte + (file.num_tokens - 1) * file.token_bytes
    return int(np.frombuffer(read_bytes(file.path, last, file.token_bytes, file.file_bytes), dtype=file.dtype)[0])


def _describe(path: Path, dtype: str) -> TokenFile:
    with explained(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix == ".npy":
            return _describe_npy(path, file, size)
    width = np.dtype(dtype).itemsize
    if size % width:
        problem = f"has {size} bytes, which is no whole number of {dtype} token ids"
        raise InputError.single(str(path), problem, fix="check data.dtype and the file")
    return TokenFile(path, f"<{np.dtype(dtype).str[1:]}", 0, size // width, size)


def _describe_npy(path: Path, file: BinaryIO, size: int) -> TokenFile:
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    except ValueError as error:
        raise InputError.single(str(path), f"is not a .npy file: {error}", fix="write it with numpy.save") from None
    start = file.tell()
    if len(shape) != 1 or dtype.name not in _NPY_TYPES:
        problem = f"holds {dtype} of shape {shape}"
        raise InputError.single(str(path), problem, fix=f"store one row of {', '.join(sorted(_NPY_TYPES))}")
    if size < start + shape[0] * dtype.itemsize:
        raise InputError.single(str(path), f"is cut short: its header tells of {shape[0]} tokens", fix="write it again")
    return TokenFile(path, dtype.str, start, shape[0], size)
