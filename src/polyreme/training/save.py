"""Writes final weights: each parameter once, streamed from the ranks that hold its parts to the file of the first.

Parameters pass in bands of rows, so that saving needs two bands of memory, however large the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist
from torch import Tensor

from polyreme.layout.layers import Parameter
from polyreme.layout.owners import shards
from polyreme.runtime.transports.base import lost
from polyreme.specs.io import atomic_binary_file
from polyreme.training.safetensors_header import TensorEntry, header_bytes
from polyreme.training.weights import Writing, shard_files

BAND_BYTES = 2**23
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
Groups = Mapping[tuple[str, int], dist.ProcessGroup | None]
"""(pipeline, stage) -> process group of the tensor ranks there."""


def save_weights(
    writings: Sequence[Writing],
    rank: int,
    parameters: Mapping[str, Tensor],
    groups: Groups,
    folder: Path,
    band_bytes: int = BAND_BYTES,
) -> None:
    """Take part in the writing of every parameter that needs this rank; every rank must call it.

    A file appears whole or not at all. InputError if it cannot be written, PeerLostError if another rank is gone.
    """
    own = [one for one in writings if rank in one.members]
    written = [one.parameter for one in own if one.writer == rank]
    if not written:
        for one in own:
            _send(one, rank, parameters[one.parameter.name], groups, band_bytes)
        return
    with atomic_binary_file(folder / shard_files(writings)[rank]) as file:
        dtypes = [_DTYPES[parameters[one.name].dtype] for one in written]
        entries = [(one.name, TensorEntry(dtype, one.shape)) for one, dtype in zip(written, dtypes, strict=True)]
        file.write(header_bytes(entries))
        for one in own:  # all ranks go through the parameters in one order, so nobody waits in a circle
            if one.writer == rank:
                _write(one, parameters[one.parameter.name].detach(), groups, file, band_bytes)
            else:
                _send(one, rank, parameters[one.parameter.name], groups, band_bytes)


def _write(one: Writing, held: Tensor, groups: Groups, file: BinaryIO, band_bytes: int) -> None:
    """Write a parameter of which this rank holds its part, and receive the others' parts for it."""
    whole, tp = one.parameter, len(one.members)
    bands = _bands(whole, held.element_size(), band_bytes)
    most = bands[0][1]
    buffer = held.new_empty(most, *whole.shape[1:])  # made once: the allocator would keep what bands of their own leave
    received = held.new_empty(most * _row_elements(whole, tp, 0) if tp > 1 else 0)
    for first, last in bands:
        band = buffer[: last - first]
        for index, member in enumerate(one.members):
            for rows, target in _rows(whole, tp, index, first, last):
                piece = held[rows]
                if member != one.writer:
                    num_rows, width = rows.stop - rows.start, _row_elements(whole, tp, index)
                    piece = received[: num_rows * width].view(num_rows, -1)
                    _exchange(piece, member, groups[one.place], receive=True)
                _put(piece, band[target], whole, tp, index)
        file.write(band.flatten().view(torch.uint8).numpy().data)


def _send(one: Writing, rank: int, held: Tensor, groups: Groups, band_bytes: int) -> None:
    whole, tp = one.parameter, len(one.members)
    for first, last in _bands(whole, held.element_size(), band_bytes):
        for rows, _ in _rows(whole, tp, one.members.index(rank), first, last):
            _exchange(held.detach()[rows].contiguous(), one.writer, groups[one.place], receive=False)


def _exchange(piece: Tensor, peer: int, group: dist.ProcessGroup | None, *, receive: bool) -> None:
    try:
        if receive:
            dist.recv(piece, peer, group=group)
        else:
            dist.send(piece, peer, group=group)
    except RuntimeError as error:
        raise lost([peer], error) from error


def _bands(whole: Parameter, element_bytes: int, band_bytes: int) -> list[tuple[int, int]]:
    """Rows [first, last) of each band: as many as `band_bytes` hold, but one at least."""
    num_rows = whole.shape[0]
    step = max(1, band_bytes * num_rows // (whole.num_elements * element_bytes))
    return [(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]


def _rows(whole: Parameter, tp: int, index: int, first: int, last: int) -> Iterator[tuple[slice, slice]]:
    """Each stretch of rows [first, last) that tensor rank `index` holds: where in its tensor, where in the band."""
    if whole.tp_dim == 1:
        yield slice(first, last), slice(0, last - first)
        return
    begin = 0
    for part in shards(whole, tp, index):
        start, stop = max(part.start, first), min(part.stop, last)
        if start < stop:
            yield slice(begin + start - part.start, begin + stop - part.start), slice(start - first, stop - first)
        begin += part.stop - part.start


def _row_elements(whole: Parameter, tp: int, index: int) -> int:
    """Elements of one row of what tensor rank `index` holds. Rank 0 has most."""
    row = whole.num_elements // whole.shape[0]
    if whole.tp_dim != 1:
        return row
    return sum(part.stop - part.start for part in shards(whole, tp, index)) * row // whole.length


def _put(piece: Tensor, band: Tensor, whole: Parameter, tp: int, index: int) -> None:
    """Copy what tensor rank `index` holds of some rows to its columns of these rows."""
    if whole.tp_dim != 1:
        band.copy_(piece.view_as(band))
        return
    begin = 0
    for part in shards(whole, tp, index):
        width = part.stop - part.start
        band.narrow(1, part.start, width).copy_(piece.narrow(1, begin, width))
        begin += width
