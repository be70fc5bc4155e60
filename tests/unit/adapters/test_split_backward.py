"""A deferred weight gradient is not there before its time and equals plain autograd's afterwards, for every matrix."""

import pytest
import torch
from small_run import NUM_TOKENS, tiny_gpt, tiny_model

from polyreme.adapters.torch_stage import TorchStage
from polyreme.models.build import StageLayers
from polyreme.specs.model import ModelSpec

MATRICES = ("proj.weight", "c_attn.weight", "c_attn.bias", "c_fc.weight", "c_fc.bias")


@pytest.mark.parametrize("model", [tiny_model(), tiny_gpt()], ids=lambda model: str(model.family))
def test_gradients_of_matrices_wait_for_backward_weight(model: ModelSpec) -> None:
    plain, layers = (StageLayers(model, 1, 3, seed=1, dtype=torch.float64) for _ in range(2))
    value, gradient = torch.randn(2, 2, NUM_TOKENS, model.hidden_size, dtype=torch.float64).unbind()
    due_input = value.clone().requires_grad_()
    plain(due_input).backward(gradient)
    stage = TorchStage(layers, splits=True)
    matrices = [name for name in layers.named if name.endswith(MATRICES)]
    assert len(matrices) == 2 * (7 if model.family == "llama" else 6)

    for microbatch in range(2):  # the second adds to what the first left
        stage.forward(microbatch, value.clone(), None)
        before = {name: layers.named[name].grad is None for name in matrices}
        found = stage.backward_input(microbatch, gradient)
        assert found is not None
        assert due_input.grad is not None
        assert torch.allclose(found, due_input.grad, rtol=1e-12)
        assert all((layers.named[name].grad is None) == before[name] for name in matrices)
        stage.backward_weight(microbatch)
    for name, parameter in layers.named.items():
        due = plain.named[name].grad
        assert parameter.grad is not None
        assert due is not None
        assert (parameter.grad - 2 * due).norm() <= 1e-12 * due.norm(), name
    assert all(before[name] is False for name in matrices)
