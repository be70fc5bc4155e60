"""The 64-byte header of every message between workers: what it is, checked on receipt, so that a mix-up is named.

Layout, little endian: first 8 bytes of the plan digest, step (u32), microbatch (u32), tag (u32), dtype (u8), dims (u8),
padding, shape (4 x u32), time sent in ns of the monotonic clock (i64), padding to 64.
"""

import struct

import torch
from torch import Tensor

from polyreme.errors import PolyremeError

_HEADER = struct.Struct("<8sIIIBB2x4Iq16x")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 64
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MAX_DIMS = 4


class MessageError(PolyremeError):
    """A message is not the one that was due: the two ends disagree about plan, step or shape."""

    exit_code = 4


def pack(plan_digest: str, step: int, microbatch: int, tag: int, payload: Tensor, sent_ns: int) -> Tensor:
    """One contiguous uint8 tensor: header, then the bytes of `payload`."""
    shape = [*payload.shape, *[1] * (_MAX_DIMS - payload.dim())]
    buffer = torch.empty(HEADER_BYTES + payload.numel() * payload.element_size(), dtype=torch.uint8)
    dtype = _DTYPES.index(payload.dtype)
    header = _HEADER.pack(bytes.fromhex(plan_digest[:16]), step, microbatch, tag, dtype, payload.dim(), *shape, sent_ns)
    buffer[:HEADER_BYTES] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    buffer[HEADER_BYTES:].view(payload.dtype).view(payload.shape).copy_(payload)
    return buffer


def unpack(buffer: Tensor, plan_digest: str, step: int, microbatch: int, tag: int, like: Tensor) -> tuple[Tensor, int]:
    """(payload, time sent in ns). `like` has the shape and dtype that are due. MessageError names what differs."""
    header = _HEADER.unpack(buffer[:HEADER_BYTES].numpy().tobytes())
    digest, *numbers, sent_ns = header
    shape = tuple(numbers[5:][: numbers[4]])
    dtype = _DTYPES[numbers[3]] if numbers[3] < len(_DTYPES) else None
    got = {
        "plan": digest.hex(),
        "step": numbers[0],
        "microbatch": numbers[1],
        "tag": numbers[2],
        "dtype": dtype,
        "shape": shape,
    }
    due = {
        "plan": plan_digest[:16],
        "step": step,
        "microbatch": microbatch,
        "tag": tag,
        "dtype": like.dtype,
        "shape": tuple(like.shape),
    }
    wrong = [f"{key} {got[key]} instead of {due[key]}" for key in due if got[key] != due[key]]
    if wrong:
        raise MessageError(f"a message with {', '.join(wrong)} arrived")
    return buffer[HEADER_BYTES:].view(like.dtype).view(like.shape), sent_ns
