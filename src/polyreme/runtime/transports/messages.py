"""The 64-byte header of every message between workers: what it is, checked on receipt, so that a mix-up is named.

Layout, little endian: first 8 bytes of the plan digest, step (u32), microbatch (u32), tag (u32), dtype (u8), dims (u8),
padding, shape (4 x u32), time sent in ns of the monotonic clock (i64), padding to 64.
"""

import struct
from dataclasses import dataclass

import torch

from polyreme.errors import PolyremeError

_HEADER = struct.Struct("<8sIIIBB2x4Iq16x")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 64
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MAX_DIMS = 4


class MessageError(PolyremeError):
    """A message is not the one that was due: the two ends disagree about plan, step or shape."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """What all messages of a channel have in common."""

    plan_digest: str
    tag: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def header(self, step: int, microbatch: int, sent_ns: int) -> bytes:
        """The header of one message."""
        shape = (*self.shape, *(1,) * (_MAX_DIMS - len(self.shape)))
        plan, dtype = bytes.fromhex(self.plan_digest[:16]), _DTYPES.index(self.dtype)
        return _HEADER.pack(plan, step, microbatch, self.tag, dtype, len(self.shape), *shape, sent_ns)

    def check(self, header: bytes, step: int, microbatch: int, ends: str) -> int:
        """Time in ns at which a message was sent. MessageError names the ends and what is not as due."""
        *found, sent_ns = _HEADER.unpack(header)
        *due, _ = _HEADER.unpack(self.header(step, microbatch, 0))
        if found != due:
            got, wanted = _described(found), _described(due)
            wrong = ", ".join(f"{key} {got[key]} instead of {wanted[key]}" for key in wanted if got[key] != wanted[key])
            raise MessageError(f"{ends}: a message with {wrong} arrived")
        return int(sent_ns)


def _described(fields: list[int | bytes]) -> dict[str, object]:
    plan, step, microbatch, tag, dtype, dims, *shape = fields
    assert isinstance(plan, bytes)
    assert isinstance(dtype, int)
    assert isinstance(dims, int)
    return {
        "plan": plan.hex(),
        "step": step,
        "microbatch": microbatch,
        "tag": tag,
        "dtype": _DTYPES[dtype] if dtype < len(_DTYPES) else f"number {dtype}",
        "shape": tuple(shape[:dims]),
    }
