"""The decision: the best of what was searched and of the plain alternatives, which are scored anyway.

The search is exact in its closed form, which leaves out how messages and unequal stages interlock; a plain split can
replay a little faster than all finalists, and is then the plan.
"""

import dataclasses
from dataclasses import dataclass

from polyreme.planner.assemble import Question
from polyreme.planner.baselines import Baseline, baselines
from polyreme.planner.search import Found, search, value_of, within_limits


@dataclass(frozen=True, slots=True)
class Decision:
    """What was found, and the plain alternatives beside it."""

    found: Found
    alternatives: tuple[Baseline, ...]


def decide(question: Question) -> Decision:
    """The plan and its alternatives, none of which is better. InfeasibleError if nothing fits."""
    goal = question.job.objective
    found = search(question)
    alternatives = baselines(question, found.best.plan.pipelines[0].microbatch_sequences)
    plain = [one.candidate for one in alternatives if one.candidate is not None]
    better = [one for one in plain if within_limits(question, one) and value_of(goal, one) < value_of(goal, found.best)]
    if better:
        best = min(better, key=lambda one: value_of(goal, one))
        found = dataclasses.replace(found, best=best, others=(found.best, *found.others))
    return Decision(found, alternatives)
