"""What the executor asks of a stage, whatever framework computes it."""

from typing import Any, Protocol


class StageModule(Protocol):
    """The layers of one stage on one worker. Microbatch numbers are those of the stage's pipeline."""

    def forward(self, microbatch: int, value: Any, labels: Any | None) -> Any:
        """Output of a microbatch: hidden states, or the summed loss if the stage holds the head.

        Keeps what backward needs.
        """
        ...

    def backward(self, microbatch: int, gradient: Any | None) -> Any | None:
        """Gradient of a microbatch's input (None for token ids); adds to the weights' gradients; frees what was kept.

        `gradient` is that of the output; None where the output is the loss, whose seed the stage was built with.
        """
        ...

    def backward_input(self, microbatch: int, gradient: Any | None) -> Any | None:
        """The gradient of the input alone, as `backward` gives it; `backward_weight` must follow."""
        ...

    def backward_weight(self, microbatch: int) -> None:
        """Add to the weights' gradients what `backward_input` left; frees what was kept."""
        ...

    def evaluate(self, value: Any, labels: Any | None) -> Any:
        """Output as of `forward`, keeping nothing."""
        ...

    def state(self) -> dict[str, Any]:
        """Global parameter name -> tensor."""
        ...
