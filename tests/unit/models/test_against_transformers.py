"""Loss and gradients of our blocks equal those of Hugging Face's, weights copied by name."""

import pytest
import torch
from small_run import NUM_LAYERS, NUM_TOKENS, tiny_gpt, tiny_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from polyreme.models.build import StageLayers
from polyreme.models.llama import IGNORED_LABEL
from polyreme.specs.fields import Precision
from polyreme.specs.model import ModelSpec
from polyreme.training.weights import huggingface_config

Result = tuple[float, dict[str, Tensor]]


def data() -> tuple[Tensor, Tensor]:
    """Tokens and labels of three sequences, the last of them cut short."""
    generator = torch.Generator().manual_seed(3)
    content = torch.randint(0, 256, (3, NUM_TOKENS + 1), generator=generator)
    labels = content[:, 1:].clone()
    labels[2, 10:] = IGNORED_LABEL
    return content[:, :-1], labels


def ours(model: ModelSpec) -> tuple[StageLayers, Result]:
    layers = StageLayers(model, 0, NUM_LAYERS, seed=5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in layers.named.values():  # biases are not 0 and norms not 1, so that a lost one is seen
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    tokens, labels = data()
    loss = layers(tokens, labels)
    loss.backward()
    return layers, (loss.item(), {name: p.grad for name, p in layers.named.items() if p.grad is not None})


def theirs(model: nn.Module, layers: StageLayers) -> Result:
    model.double()
    state = {name: parameter.detach() for name, parameter in layers.named.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} - set(state)  # tied to the embedding
    assert unexpected == []
    tokens, labels = data()
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def compare(found: Result, due: Result, tolerance: float) -> None:
    assert found[0] == pytest.approx(due[0], rel=tolerance)
    assert found[1].keys() == due[1].keys()
    for name, gradient in found[1].items():
        assert (gradient - due[1][name]).norm() <= tolerance * due[1][name].norm(), name


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_gpt_computes_what_hugging_faces_gpt2_does(*, tied: bool) -> None:
    model = tiny_gpt(tied=tied)
    layers, found = ours(model)
    config = GPT2Config(**huggingface_config(model, Precision.FP64))
    compare(found, theirs(GPT2LMHeadModel(config), layers), 1e-10)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_llama_computes_what_hugging_faces_llama_does(*, tied: bool) -> None:
    model = tiny_model(tied=tied)
    layers, found = ours(model)
    config = LlamaConfig(**huggingface_config(model, Precision.FP64))
    compare(found, theirs(LlamaForCausalLM(config), layers), 1e-5)  # their norms and positions are fp32 in any dtype
