"""What the server that workers are forked from imports, once for all of them.

Building one small layer makes torch load what it otherwise loads in every worker, most of a second each. Nothing is
differentiated here: autograd must not have run in a process that forks.
"""

from polyreme.models.build import StageLayers
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.training.worker import worker_main

SMALLEST = ModelSpec(
    name="smallest",
    family=ModelFamily.LLAMA,
    num_layers=1,
    hidden_size=2,
    num_heads=1,
    ffn_hidden_size=2,
    vocab_size=2,
)
StageLayers(SMALLEST, 0, 3, seed=0)

__all__ = ["worker_main"]
