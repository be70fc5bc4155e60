"""A refusal for memory names the shortfall, and every change it lists is tried here and plans."""

import dataclasses
import re

import pytest
from planning import question
from random_fleets import kind, small_model

from polyreme.errors import InfeasibleError
from polyreme.planner.assemble import Question
from polyreme.planner.search import search
from polyreme.specs.fields import LayerKind, Precision
from polyreme.specs.job import Limits
from polyreme.specs.profile import LayerTiming, ProfileSpec, Spread

MODEL = small_model(12, 256)
TINY = kind("tiny", 2e11, 1.6e9 + 110e6)


def asked(count: int = 2, fraction: float = 0.99, tokens: int = 256, blocks: int = 12) -> Question:
    model = dataclasses.replace(MODEL, num_layers=blocks)
    limits = Limits(memory_fraction=fraction)
    return question([TINY], {"n": {"tiny": count}}, model=model, tokens=tokens, limits=limits, sequences=8)


def refusal(of: Question) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as refused:
        search(of)
    return refused.value


def test_every_listed_change_fits_when_applied_and_one_step_less_does_not() -> None:
    error = refusal(asked())
    assert error.limit == "device memory"
    assert len(error.changes) >= 3, error.changes
    for change in error.changes:
        number = int(re.findall(r"\d+", change)[0])
        if "more tiny" in change:
            search(asked(count=2 + number))
            refusal(asked(count=1 + number))
        elif change.startswith("batch.tokens_per_sequence"):
            search(asked(tokens=number))
            refusal(asked(tokens=2 * number))
        elif change.startswith("limits.memory_fraction"):
            search(asked(fraction=1.0))
        elif change.startswith("a model of"):
            search(asked(blocks=number))
            refusal(asked(blocks=number + 1))
        else:
            pytest.fail(f"a change that nothing here applies: {change}")


def test_a_job_timed_by_a_profile_alone_is_refused_for_memory_and_not_for_missing_timings() -> None:
    flat = Spread(median_s=1e-3, p10_s=9e-4, p90_s=1.1e-3, num_samples=9)
    layers = tuple(
        LayerTiming(
            device="box",
            layer=layer,
            precision=Precision.FP32,
            sequences=1,
            tokens_per_sequence=64,
            forward=flat,
            backward=flat,
            update=flat,
            activation_bytes=100_000,
        )
        for layer in LayerKind
    )
    profile = ProfileSpec(created_by="t", model="m", layers=layers, provenance={})
    box = dataclasses.replace(kind("box", 1e11, 20e6), driver="emulated", peak_flops_per_s=None, speed=1.0)
    error = refusal(question([box], {"n": {"box": 2}}, model=MODEL, profile=profile))
    assert error.limit == "device memory"
