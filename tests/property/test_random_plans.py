"""Random models under random plans: every gradient meets the rule, every list runs under both assumptions on sends."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from gradient_rule import run_case
from random_fleets import random_places
from small_run import NUM_TOKENS, inputs, pipeline

from polyreme.layout.owners import buckets
from polyreme.schedules.lower import lower
from polyreme.schedules.validate import validate
from polyreme.specs.fields import Precision, Recompute, ScheduleName
from polyreme.specs.job import TextData
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Pipeline, StageTime

QUICK_CASES, ALL_CASES, PLANS = 40, 320, 1000
MOST_WORKERS = 8


def random_model(draw: random.Random) -> ModelSpec:
    kv_heads = draw.choice([1, 2, 3])
    num_heads = kv_heads * draw.choice([1, 2])
    if draw.random() < 0.3:
        return ModelSpec(
            name="random",
            family=ModelFamily.GPT,
            num_layers=draw.randint(1, 6),
            hidden_size=4 * num_heads * draw.randint(1, 2),
            num_heads=num_heads,
            ffn_hidden_size=draw.randint(3, 40),
            vocab_size=256 + draw.randint(0, 9),
            max_sequence_length=NUM_TOKENS + draw.randint(0, 9),
            tied_embedding=draw.random() < 0.6,
        )
    return ModelSpec(
        name="random",
        family=ModelFamily.LLAMA,
        num_layers=draw.randint(1, 6),
        hidden_size=8 * draw.randint(1, 4),
        head_size=2 * draw.randint(1, 4),
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        ffn_hidden_size=draw.randint(3, 40),
        vocab_size=256 + draw.randint(0, 9),
        tied_embedding=draw.random() < 0.4,
    )


def random_pipeline(
    draw: random.Random, name: str, base: int, model: ModelSpec, precision: Precision, most_ranks: int
) -> Pipeline:
    """Any placement that `num_layers` can fill, any shares and tensor degrees, any schedule that goes with it."""
    num_layers = model.num_layers + 2
    while True:
        places = random_places(draw)
        holder = {stage: stages[0] for stages in places for stage in stages}
        num_stages, sequences = len(holder), draw.randint(1, 4)
        groups: list[list[tuple[int, int]]] = []
        for _ in range(num_stages):
            cuts = sorted({0, sequences, *(draw.randint(0, sequences) for _ in range(draw.choice([0, 0, 1])))})
            shares = [after - before for before, after in pairwise(cuts)]
            groups.append([(share, draw.choice([1, 1, 2][: 1 + 2 * (model.kv_heads > 1)])) for share in shares])
        ranks = sum(tp for stage, each in enumerate(groups) for _, tp in each if holder[stage] == stage)
        if num_stages <= num_layers and ranks <= most_ranks:
            break
    folded = [(place, 2 * len(places) - 1 - place) for place in range(len(places))]
    allowed = [ScheduleName.GPIPE, ScheduleName.INTERLEAVED, ScheduleName.LIST]
    if num_stages == len(places):
        allowed += [ScheduleName.ONE_F_ONE_B, ScheduleName.ZB_H1, ScheduleName.ZB_H2]
    elif places == folded:
        allowed = [ScheduleName.ZB_V]
    return pipeline(
        name,
        sorted(draw.sample(range(1, num_layers), num_stages - 1)),
        draw.randint(1, 6),
        draw.choice(allowed),
        base=base,
        microbatch_sequences=sequences,
        precision=precision,
        groups=groups,
        places=[holder[stage] for stage in range(num_stages)],
        num_layers=num_layers,
        times=[StageTime(f=draw.random(), i=draw.random(), w=draw.random()) for _ in range(num_stages)],
        recompute=draw.choice([Recompute.NONE, Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]),
    )


def random_case(seed: int) -> tuple[list[Pipeline], ModelSpec, Precision]:
    draw = random.Random(f"case {seed}")  # noqa: S311
    model = random_model(draw)
    precision = draw.choice([Precision.FP64, Precision.FP64, Precision.FP32])
    pipelines, base = [], 0
    for name in ("a", "b", "c")[: draw.choice([1, 1, 2, 3])]:
        left = MOST_WORKERS - base
        if left < 2:
            break
        made = random_pipeline(draw, name, base, model, precision, left)
        pipelines.append(made)
        base += len({rank for stage in made.stages for group in stage.groups for rank in group.ranks})
    return pipelines, model, precision


def check_case(seed: int, tmp_path: Path) -> None:
    pipelines, model, precision = random_case(seed)
    run_case(pipelines, tmp_path, precision, model=model)


@pytest.mark.parametrize("seed", range(QUICK_CASES))
def test_gradients_of_a_random_plan_meet_the_rule(seed: int, tmp_path: Path) -> None:
    check_case(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK_CASES, ALL_CASES))
def test_gradients_of_any_random_plan_meet_the_rule(seed: int, tmp_path: Path) -> None:
    check_case(seed, tmp_path)


def test_lists_of_a_thousand_random_plans_are_valid() -> None:
    used = set()
    for seed in range(PLANS):
        pipelines, model, precision = random_case(seed)
        plan = inputs(pipelines, TextData(), precision=precision, model=model).plan
        shared = buckets(plan, model)
        assert validate(lower(plan, shared), [bucket.owners for bucket in shared]) == [], seed
        used |= {one.schedule.name for one in pipelines}
    assert used == set(ScheduleName)
