"""The header of a message."""

import pytest
import torch

from polyreme.runtime.messages import MessageError, pack, unpack

DIGEST = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_message_arrives_as_it_was_sent(dtype: torch.dtype) -> None:
    payload = torch.randn(2, 3, 5).to(dtype)
    received, sent_ns = unpack(pack(DIGEST, 7, 3, 11, payload, 123), DIGEST, 7, 3, 11, payload)
    assert torch.equal(received, payload)
    assert sent_ns == 123


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"plan_digest": "f" * 32}, "plan"),
        ({"step": 8}, "step 7 instead of 8"),
        ({"microbatch": 4}, "microbatch 3 instead of 4"),
        ({"tag": 1}, "tag 11 instead of 1"),
        ({"like": torch.empty(2, 3, 5, dtype=torch.float64)}, "dtype"),
        ({"like": torch.empty(3, 2, 5)}, "shape"),
    ],
)
def test_every_difference_is_named(changes: dict[str, object], named: str) -> None:
    buffer = pack(DIGEST, 7, 3, 11, torch.zeros(2, 3, 5), 0)
    due: dict[str, object] = {
        "plan_digest": DIGEST,
        "step": 7,
        "microbatch": 3,
        "tag": 11,
        "like": torch.zeros(2, 3, 5),
    }
    with pytest.raises(MessageError, match=named):
        unpack(buffer, **(due | changes))  # type: ignore[arg-type]


def test_all_differences_are_named_at_once() -> None:
    buffer = pack(DIGEST, 7, 3, 11, torch.zeros(2, 3), 0)
    with pytest.raises(MessageError) as caught:
        unpack(buffer, "f" * 32, 8, 4, 12, torch.zeros(3, 2, dtype=torch.float64))
    assert all(key in str(caught.value) for key in ("plan", "step", "microbatch", "tag", "dtype", "shape"))


def test_a_header_of_noise_is_refused_and_not_obeyed() -> None:
    buffer = pack(DIGEST, 7, 3, 11, torch.zeros(2, 3), 0)
    buffer[:64] = 255
    with pytest.raises(MessageError, match="dtype None"):
        unpack(buffer, DIGEST, 7, 3, 11, torch.zeros(2, 3))
