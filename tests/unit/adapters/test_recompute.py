"""What recompute keeps, counted tensor by tensor."""

import pytest
import torch
from small_run import tiny_model

from polyreme.adapters.torch_stage import TorchStage
from polyreme.drivers.base import MemoryLedger
from polyreme.models.build import StageLayers
from polyreme.specs.fields import Recompute

SEQUENCES, TOKENS = 2, 16


def kept_elements(recompute: Recompute, blocks: int) -> float:
    """Elements per token and block that a stage of `blocks` blocks keeps."""
    memory = MemoryLedger("here", 1e9)
    layers = StageLayers(tiny_model(), 1, 1 + blocks, seed=0, recompute=recompute)
    stage = TorchStage(layers, memory)
    for microbatch in range(2):
        stage.forward(microbatch, torch.randn(SEQUENCES, TOKENS, 32), None)
    held = memory.held_bytes["activations"]
    for microbatch in range(2):
        stage.backward(microbatch, torch.ones(SEQUENCES, TOKENS, 32))
    assert memory.held_bytes["activations"] == 0
    return held / 2 / 4 / SEQUENCES / TOKENS / blocks


def test_full_recompute_keeps_the_input_of_each_block() -> None:
    assert kept_elements(Recompute.FULL, 3) == 32


@pytest.mark.parametrize("blocks", [1, 3])
def test_selective_recompute_keeps_input_and_products(blocks: int) -> None:
    """Input 32, q 32, k and v 16 each, attention 32 and its 4 sums of rows, o 32, gate and up 48 each, down 32."""
    assert kept_elements(Recompute.SELECTIVE, blocks) == 32 + 32 + 2 * 16 + 32 + 4 + 32 + 2 * 48 + 32


def test_without_recompute_everything_is_kept() -> None:
    assert kept_elements(Recompute.NONE, 2) > kept_elements(Recompute.SELECTIVE, 2)
