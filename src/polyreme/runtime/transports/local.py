"""What a worker passes from one of its stages to another: no message, the tensor itself."""

from collections import deque
from collections.abc import Sequence

from torch import Tensor


class LocalChannel:
    """Both ends of a channel inside one worker."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, Tensor]] = deque()

    def send(self, step: int, microbatch: int, payload: Tensor) -> None:
        """Keep the tensor for the other stage."""
        self._waiting.append((step, microbatch, payload))

    def flush(self) -> None:
        """Nothing leaves the worker."""

    def expect(self, step: int, microbatches: Sequence[int]) -> None:
        """Nothing has to be posted."""

    def receive(self, step: int, microbatch: int) -> Tensor:
        """The tensor that was sent."""
        *found, payload = self._waiting.popleft()
        assert found == [step, microbatch], f"{found} was kept where {[step, microbatch]} is due"
        return payload.detach()
