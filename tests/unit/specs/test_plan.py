"""A plan is valid by construction: every broken rule is named, with the numbers that break it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretend_run import Pretence, make_plan

from polyreme.errors import InputError
from polyreme.specs.io import load_plan, to_data

PLAN = to_data(make_plan(Pretence(pipelines=2, microbatches=3)))


def stage(data: Any, index: int = 1) -> Any:
    return data["pipelines"][0]["stages"][index]


RULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "gap": (lambda d: stage(d).update(layers=[7, 10]), "stage 0 ends at layer 6 but stage 1 starts at 7"),
    "overlap": (lambda d: stage(d).update(layers=[5, 10]), "stage 0 ends at layer 6 but stage 1 starts at 5"),
    "first layer": (lambda d: stage(d, 0).update(layers=[1, 6]), "the first stage starts at layer 1, not 0"),
    "empty": (lambda d: stage(d).update(layers=[6, 6]), "layers [6, 6] is empty"),
    "tp": (lambda d: stage(d)["groups"][0].update(tp=2), "tp 2 x cp 1 is not the number of ranks, 1"),
    "cp": (lambda d: stage(d)["groups"][0].update(cp=3), "tp 1 x cp 3 is not the number of ranks, 1"),
    "rank twice": (lambda d: stage(d)["groups"][0].update(ranks=[1, 1], tp=2), "a rank appears twice in [1, 1]"),
    "two groups": (
        lambda d: stage(d).update(groups=[{"ranks": [1], "sequences": 2}] * 2),
        "a rank belongs to two groups of one stage: [1, 1]",
    ),
    "no rank": (lambda d: stage(d)["groups"][0].update(ranks=[]), "got []"),
    "sequences": (
        lambda d: stage(d)["groups"][0].update(sequences=3),
        "stage 1: its groups take 3 sequences of a microbatch of 4",
    ),
    "batch": (
        lambda d: d["batch"].update(sequences=25),
        "the pipelines take 24 sequences a step, the batch has 25",
    ),
    "rank outside": (
        lambda d: stage(d)["groups"][0].update(ranks=[9]),
        "pipeline a: rank 9 but there are 8 workers",
    ),
    "idle rank": (lambda d: d["workers"].append("spare"), "ranks without a stage: [8]"),
    "worker twice": (lambda d: d["workers"].__setitem__(1, d["workers"][0]), "a worker appears twice in workers"),
    "shared ranks": (
        lambda d: d["pipelines"][0].update(base_ranks=[0, 3]),
        "rank 3 is in pipeline a (base 0) and in a (base 3)",
    ),
    "one name": (lambda d: d["pipelines"].append(d["pipelines"][0]), "two pipelines have one name: ['a', 'a']"),
    "edge": (
        lambda d: d.update(edges=[{"from": ["a", 0], "to": ["a", 4], "transport": "shm"}]),
        "edge end ['a', 4] is no stage of the plan",
    ),
    "edge over a stage": (
        lambda d: d.update(edges=[{"from": ["a", 0], "to": ["a", 2], "transport": "shm"}]),
        "edge from ['a', 0] to ['a', 2] joins no two neighbouring stages",
    ),
    "list schedule": (
        lambda d: d["pipelines"][0].update(schedule={"name": "list", "in_flight": [1]}),
        "in_flight has 1 entries for 4 stages",
    ),
    "limit of a schedule": (
        lambda d: d["pipelines"][0].update(schedule={"name": "1f1b", "in_flight": [1, 1, 1, 1]}),
        "in_flight belongs to schedule list; 1f1b has its own limit",
    ),
    "interval": (lambda d: d["predicted"].update(step_time_s=[2, 1, 3]), "interval out of order: [2.0, 1.0, 3.0]"),
    "zero": (lambda d: stage(d).update(zero=4), "got 4: input should be less than or equal to 3"),
}


def load(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data, indent=1))
    load_plan(path)


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_named(rule: str, tmp_path: Path) -> None:
    damage, problem = RULES[rule]
    data = json.loads(json.dumps(PLAN))
    damage(data)
    with pytest.raises(InputError) as caught:
        load(tmp_path, data)
    assert any(problem in fault.problem for fault in caught.value.faults), str(caught.value)
    assert all("plan.json:" in fault.source for fault in caught.value.faults)


def test_rules_broken_in_different_places_are_all_named(tmp_path: Path) -> None:
    data = json.loads(json.dumps(PLAN))
    stage(data, 0)["layers"] = [3, 3]
    stage(data, 2)["groups"][0]["tp"] = 5
    with pytest.raises(InputError) as caught:
        load(tmp_path, data)
    assert [fault.path for fault in caught.value.faults] == [
        "pipelines[0].stages[0]",
        "pipelines[0].stages[2].groups[0]",
    ]
