"""A run that the model's dims cannot be cut for is refused before any worker starts, with what is too few."""

import dataclasses

import pytest
from small_run import NUM_TOKENS, inputs, pipeline, tiny_gpt, tiny_model

from polyreme.errors import InputError
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import TextData
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.training.runnable import Inputs, check_runnable

GPIPE = ScheduleName.GPIPE


def given(model: ModelSpec, *degrees: int) -> Inputs:
    """A pipeline of three stages, embedding and a block, a block, the rest; each has a tensor degree."""
    one = pipeline("a", [2, 3], 2, GPIPE, groups=[[(2, tp)] for tp in degrees])
    return inputs([one], TextData(), model=model)


def problem_of(run: Inputs) -> str:
    with pytest.raises(InputError) as caught:
        check_runnable(run)
    return str(caught.value)


@pytest.mark.parametrize("model", [tiny_model(), tiny_gpt(tied=True)], ids=lambda model: str(model.family))
def test_degrees_that_the_model_has_parts_for_are_accepted(model: ModelSpec) -> None:
    check_runnable(given(model, 2, 1, 2))


def test_more_tensor_ranks_than_key_value_heads_are_refused() -> None:
    text = problem_of(given(tiny_model(), 2, 4, 2))
    assert "stage 1 of pipeline a has tp 4, more than the 2 key/value heads" in text
    assert "stage 0" not in text


def test_more_tensor_ranks_than_the_width_of_the_feed_forward_part_are_refused() -> None:
    model = dataclasses.replace(tiny_model(), num_kv_heads=4, ffn_hidden_size=3)
    assert "tp 4, more than the 3 elements of ffn_hidden_size" in problem_of(given(model, 1, 4, 1))


def test_more_tensor_ranks_than_tokens_of_the_vocabulary_are_refused_where_it_is_held() -> None:
    model = dataclasses.replace(tiny_model(), num_kv_heads=4, vocab_size=3)
    text = problem_of(given(model, 1, 4, 4))
    assert "stage 2 of pipeline a has tp 4, more than the 3 tokens of the vocabulary" in text
    assert "stage 1" not in text


def test_tokens_that_do_not_divide_among_the_tensor_ranks_are_refused() -> None:
    run = given(dataclasses.replace(tiny_model(), num_kv_heads=4), 2, 3, 1)
    batch = dataclasses.replace(run.plan.batch, tokens_per_sequence=NUM_TOKENS + 2)
    plan, job = dataclasses.replace(run.plan, batch=batch), dataclasses.replace(run.job, batch=batch)
    assert "tokens_per_sequence 26 is not a multiple of tp 3" in problem_of(
        dataclasses.replace(run, plan=plan, job=job)
    )


def test_more_tokens_than_learned_positions_are_refused() -> None:
    model = dataclasses.replace(tiny_gpt(), max_sequence_length=NUM_TOKENS - 1)
    assert "tokens_per_sequence 24 is more than the 23 learned positions" in problem_of(given(model, 1, 1, 1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"family": ModelFamily.MOE, "num_experts": 4, "experts_per_token": 2}, "family moe can be planned"),
        ({"rope_scaling": "yarn"}, "rope_scaling yarn"),
        ({"attention_window": 8}, "attention_window 8"),
        ({"family": ModelFamily.GPT, "max_sequence_length": 64}, "family gpt with num_kv_heads or head_size"),
    ],
)
def test_models_that_the_blocks_do_not_cover_are_refused(change: dict[str, object], problem: str) -> None:
    model = dataclasses.replace(tiny_model(), **change)  # type: ignore[arg-type]
    assert problem in problem_of(given(model, 1, 1, 1))
