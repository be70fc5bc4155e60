"""The header of a safetensors file: read and checked, and written, without reading a tensor and without a framework.

The file is 8 bytes with the header's length, little endian, the header as JSON, and the tensors' bytes.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from polyreme.errors import InputError

ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Element types that weights are read from and written in."""
MAX_HEADER_BYTES = 100_000_000
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_MAX_DIMS = 8


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file by its element type, such as F32, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor; its type must be one of ELEMENT_BYTES."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Tensors of a file by name. InputError if it cannot be read or is not what its length says."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(_LENGTH.size)
            length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
            data_bytes = size - _LENGTH.size - length
            if not 0 < length <= MAX_HEADER_BYTES or data_bytes < 0:
                raise _not_safetensors(path, "its length is wrong")
            content = json.loads(file.read(length))
    except OSError as error:
        raise InputError.single(str(path), f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise _not_safetensors(path, "its header is not JSON") from None
    if not isinstance(content, dict):
        raise _not_safetensors(path, "its header is not a mapping")
    return {name: _entry(path, name, given, data_bytes) for name, given in content.items() if name != _METADATA}


def header_bytes(entries: Sequence[tuple[str, TensorEntry]]) -> bytes:
    """Length and header of a file that holds `entries`, whose bytes follow one behind the other in this order."""
    content: dict[str, Any] = {_METADATA: {"format": "pt"}}
    start = 0
    for name, entry in entries:
        stop = start + entry.num_bytes
        content[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors begin at a multiple of 8
    return _LENGTH.pack(len(text)) + text


def _entry(path: Path, name: str, given: Any, data_bytes: int) -> TensorEntry:
    if not isinstance(given, dict) or not isinstance(given.get("dtype"), str):
        raise _not_safetensors(path, f"its entry {name!r} has no dtype")
    shape, offsets = _whole_numbers(given.get("shape")), _whole_numbers(given.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        raise _not_safetensors(path, f"shape or data_offsets of its entry {name!r} are not lists of whole numbers")
    entry = TensorEntry(given["dtype"], shape)
    start, stop = offsets
    if not start <= stop <= data_bytes or (entry.dtype in ELEMENT_BYTES and stop - start != entry.num_bytes):
        raise _not_safetensors(path, f"the bytes of its entry {name!r} are not where or as many as its header says")
    return entry


def _whole_numbers(value: Any) -> tuple[int, ...] | None:
    """A short list of whole numbers; None if it is anything else."""
    if not isinstance(value, list) or len(value) > _MAX_DIMS:
        return None
    return tuple(value) if all(type(one) is int and one >= 0 for one in value) else None


def _not_safetensors(path: Path, why: str) -> InputError:
    return InputError.single(
        str(path), f"is not a whole safetensors file: {why}", fix="fetch or write it again, as safetensors"
    )
