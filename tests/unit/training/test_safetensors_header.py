"""Headers mean the same to us and to the safetensors package, and a damaged file is named as such."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyreme.errors import InputError
from polyreme.training.safetensors_header import TensorEntry, header_bytes, read_header

TENSORS = {
    "a": torch.arange(6, dtype=torch.float64).view(2, 3),
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "c": torch.ones(5, dtype=torch.float32),
    "d": torch.full((1, 2, 1), 3.0, dtype=torch.float16),
}
ENTRIES = {
    "a": TensorEntry("F64", (2, 3)),
    "b": TensorEntry("BF16", (2,)),
    "c": TensorEntry("F32", (5,)),
    "d": TensorEntry("F16", (1, 2, 1)),
}


def write(path: Path, header: object, data_bytes: int = 0) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data_bytes))
    return path


def test_a_header_of_ours_is_read_by_safetensors(tmp_path: Path) -> None:
    data = b"".join(tensor.flatten().view(torch.uint8).numpy().tobytes() for tensor in TENSORS.values())
    path = tmp_path / "x.safetensors"
    path.write_bytes(header_bytes(list(ENTRIES.items())) + data)
    loaded = load_file(path)
    assert loaded.keys() == TENSORS.keys()
    assert all(loaded[name].dtype is TENSORS[name].dtype for name in TENSORS)
    assert all(torch.equal(loaded[name], TENSORS[name]) for name in TENSORS)


def test_a_header_of_safetensors_is_read_by_us(tmp_path: Path) -> None:
    save_file({**TENSORS, "mask": torch.ones(2, 2, dtype=torch.uint8)}, tmp_path / "x.safetensors", {"format": "pt"})
    assert read_header(tmp_path / "x.safetensors") == {**ENTRIES, "mask": TensorEntry("U8", (2, 2))}


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        [],
        {"w": 1},
        {"w": {**ENTRY, "dtype": None}},
        {"w": {**ENTRY, "shape": [2, -2]}},
        {"w": {**ENTRY, "shape": [2, True]}},
        {"w": {**ENTRY, "shape": "22"}},
        {"w": {**ENTRY, "shape": [2, 3]}},
        {"w": {**ENTRY, "data_offsets": [0]}},
        {"w": {**ENTRY, "data_offsets": [16, 0]}},
        {"w": {**ENTRY, "data_offsets": [8, 24]}},
        {"w": {**ENTRY, "data_offsets": [0.0, 16]}},
    ],
    ids=lambda header: str(header)[:40],
)
def test_a_damaged_header_is_refused(header: object, tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", header, 16)
    with pytest.raises(InputError, match=r"x\.safetensors: is not a whole safetensors file"):
        read_header(path)


@pytest.mark.parametrize("kept", [0, 7, 8, 20, -1])
def test_a_file_that_was_cut_off_is_refused(kept: int, tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"w": ENTRY}, 16)
    assert read_header(path) == {"w": TensorEntry("F32", (2, 2))}
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="is not a whole safetensors file"):
        read_header(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.safetensors: cannot be read: No such file"):
        read_header(tmp_path / "gone.safetensors")
