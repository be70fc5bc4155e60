"""Headers: what is sent is found again, and each difference is named with both ends."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyreme.runtime.transports.messages import HEADER_BYTES, Kind, MessageError

KIND = Kind("0123456789abcdef" * 2, 7, torch.float32, (2, 3, 4))
ENDS = "rank 0 (n/w0) -> rank 1 (n/w1), boundary a.0|a.1 activations"


@given(
    step=st.integers(0, 2**32 - 1),
    microbatch=st.integers(0, 2**32 - 1),
    tag=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    shape=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    sent_ns=st.integers(0, 2**63 - 1),
)
def test_a_header_that_is_due_gives_the_time_it_was_sent(
    step: int, microbatch: int, tag: int, dtype: torch.dtype, shape: tuple[int, ...], sent_ns: int
) -> None:
    kind = Kind("ab" * 16, tag, dtype, shape)
    header = kind.header(step, microbatch, sent_ns)
    assert len(header) == HEADER_BYTES
    assert kind.check(header, step, microbatch, ENDS) == sent_ns


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ({"step": 4}, "step 4 instead of 3"),
        ({"microbatch": 9}, "microbatch 9 instead of 5"),
        ({"tag": 8}, "tag 8 instead of 7"),
        ({"dtype": torch.bfloat16}, "dtype torch.bfloat16 instead of torch.float32"),
        ({"shape": (2, 3, 5)}, r"shape \(2, 3, 5\) instead of \(2, 3, 4\)"),
        ({"shape": (2, 3)}, r"shape \(2, 3\) instead of \(2, 3, 4\)"),
        ({"plan_digest": "f" * 32}, "plan ffffffffffffffff instead of 0123456789abcdef"),
        ({"step": 4, "microbatch": 9}, "step 4 instead of 3, microbatch 9 instead of 5"),
    ],
)
def test_what_is_not_as_due_is_named_with_both_ends(sent: dict[str, Any], problem: str) -> None:
    step, microbatch = sent.pop("step", 3), sent.pop("microbatch", 5)
    header = dataclasses.replace(KIND, **sent).header(step, microbatch, 1)
    with pytest.raises(
        MessageError, match=rf"rank 0 \(n/w0\) -> rank 1 .* activations: a message with {problem} arrived"
    ):
        KIND.check(header, 3, 5, ENDS)
