"""No alternative that is printed beside a plan is better than the plan."""

import random

from planning import question
from random_fleets import kind, small_model

from polyreme.errors import InfeasibleError
from polyreme.planner.assemble import Question
from polyreme.planner.decide import decide
from polyreme.planner.search import search, value_of
from polyreme.specs.fields import Objective

CASES = 150


def random_question(seed: int) -> Question:
    draw = random.Random(seed)  # noqa: S311
    kinds = [kind(f"k{index}", draw.choice([5e10, 1e11, 3e11]), 1e11, draw.choice([1, 3])) for index in range(2)]
    nodes = {f"n{index}": {draw.choice(kinds).name: draw.randint(1, 2)} for index in range(draw.randint(2, 3))}
    return question(
        kinds,
        nodes,
        model=small_model(draw.randint(4, 10), draw.choice([64, 256])),
        sequences=draw.choice([4, 8, 16]),
        tokens=draw.choice([64, 512]),
        objective=draw.choice([Objective.TIME, Objective.COST]),
    )


def test_the_plan_is_never_worse_than_an_alternative_beside_it() -> None:
    rescued = decided = 0
    for seed in range(CASES):
        asked = random_question(seed)
        try:
            decision = decide(asked)
        except InfeasibleError:
            continue
        decided += 1
        goal = asked.job.objective
        best = value_of(goal, decision.found.best)
        for one in decision.alternatives:
            assert one.candidate is None or value_of(goal, one.candidate) >= best, seed
        assert value_of(goal, search(asked).best) >= best, seed
        rescued += value_of(goal, search(asked).best) > best
    assert decided > CASES // 2
    assert rescued > 0, "no case in which the closed form alone chose a slower plan: the test shows nothing"
