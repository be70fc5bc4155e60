"""What training draws its sequences from, whatever the data: the protocol of batches and launcher. No torch."""

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int64]


class DataSource(Protocol):
    """Sequences that depend on seed and place in the run alone, so that they are the same under every plan.

    A step draws `num_sequences` of at most `num_tokens` + 1 tokens. How many steps are done is all that a resumed run
    has to know.
    """

    @property
    def digest(self) -> str:
        """What the sequences are made from, 32 hex digits."""

    @property
    def inventory(self) -> str:
        """What was found, without reading it: processes that have the same agree on every sequence."""

    def count_targets(self, seed: int, step: int, num_sequences: int, num_tokens: int) -> int:
        """Tokens that count in a step's whole batch: what its loss is divided by. Reads no sequence but their sizes."""

    def read_sequence(self, seed: int, step: int, sequence: int, num_sequences: int, num_tokens: int) -> Tokens:
        """Sequence number `sequence` of a step: its inputs and, one further, its targets.

        [num_targets + 1], at most `num_tokens` + 1; without a target, at most one token. InputError if it is not to be
        had any more.
        """
