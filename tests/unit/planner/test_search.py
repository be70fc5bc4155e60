"""The search on constructed cases whose answer is known."""

import dataclasses

import pytest
from planning import question
from random_fleets import kind, small_model

from polyreme.errors import InfeasibleError
from polyreme.layout.layers import num_layers
from polyreme.planner.assemble import Candidate
from polyreme.planner.baselines import baselines
from polyreme.planner.search import search
from polyreme.simulator.simulate import simulate
from polyreme.specs.fields import Objective, Precision
from polyreme.specs.job import Limits

FAST = kind("fast", 4e11, 80e9, 10.0)
CHEAP = kind("cheap", 2e11, 80e9, 1.0)
MIXED = {"n": {"fast": 2, "cheap": 2}}


def best(*args: object, **options: object) -> Candidate:
    return search(question(*args, **options)).best  # type: ignore[arg-type]


def cost_of(candidate: Candidate) -> float:
    cost = candidate.simulation.report.cost_per_step_usd
    assert cost is not None
    return cost


def limit_in(changes: tuple[str, ...], name: str) -> float:
    return next(float(change.split(": ")[1]) for change in changes if change.startswith(f"{name}: "))


def test_one_device_gets_the_whole_model() -> None:
    plan = best([CHEAP], {"n": {"cheap": 1}}).plan
    assert [stage.layers for stage in plan.pipelines[0].stages] == [(0, 10)]


def test_more_devices_than_layers_leaves_devices_out() -> None:
    model = small_model(2, 256)
    stages = best([CHEAP], {"n": {"cheap": 9}}, model=model, sequences=64).plan.pipelines[0].stages
    assert 1 < len(stages) <= num_layers(model)
    assert all(start < stop for start, stop in (stage.layers for stage in stages))


def test_a_prime_batch_is_planned_in_microbatches_of_one() -> None:
    pipeline = best([CHEAP], {"n": {"cheap": 3}}, sequences=67).plan.pipelines[0]
    assert (pipeline.microbatches, pipeline.microbatch_sequences) == (67, 1)


def test_a_device_too_slow_to_help_is_left_out() -> None:
    slow = kind("slow", 1e8, 80e9)
    assert set(best([FAST, slow], {"n": {"fast": 2, "slow": 1}}).plan.workers) == {"n/fast0", "n/fast1"}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_without_links_between_nodes_the_better_node_is_used_wherever_it_stands(order: tuple[str, str]) -> None:
    counts = {"a": {"cheap": 1}, "b": {"cheap": 4}}
    found = best([CHEAP], {node: counts[node] for node in order}, cut=[("a", "b")], sequences=64)
    assert {worker.split("/")[0] for worker in found.plan.workers} == {"b"}
    alone = best([CHEAP], {"b": {"cheap": 4}}, sequences=64)
    assert found.step_time_s == pytest.approx(alone.step_time_s)


def test_the_cheapest_plan_within_a_step_time_is_found() -> None:
    fastest, cheapest = best([FAST, CHEAP], MIXED), best([FAST, CHEAP], MIXED, objective=Objective.COST)
    limit = 1.3 * fastest.step_time_s
    assert cheapest.step_time_s > limit
    found = best([FAST, CHEAP], MIXED, objective=Objective.COST, limits=Limits(step_time_s=limit))
    assert found.step_time_s <= limit
    assert cost_of(cheapest) <= cost_of(found) <= cost_of(fastest)


def test_the_fastest_plan_within_a_cost_is_found() -> None:
    fastest = best([FAST, CHEAP], MIXED)
    limit = 0.7 * cost_of(fastest)
    found = best([FAST, CHEAP], MIXED, limits=Limits(cost_per_step_usd=limit))
    assert cost_of(found) <= limit
    assert found.step_time_s >= fastest.step_time_s


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.COST])
def test_the_step_time_that_a_refusal_offers_is_planned(objective: Objective) -> None:
    with pytest.raises(InfeasibleError) as refused:
        best([FAST, CHEAP], MIXED, objective=objective, limits=Limits(step_time_s=1e-3))
    assert refused.value.limit == "limits.step_time_s"
    offered = limit_in(refused.value.changes, "limits.step_time_s")
    found = best([FAST, CHEAP], MIXED, objective=objective, limits=Limits(step_time_s=offered))
    assert found.step_time_s == pytest.approx(best([FAST, CHEAP], MIXED).step_time_s, rel=1e-3)


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.COST])
def test_the_cost_that_a_refusal_offers_is_planned(objective: Objective) -> None:
    with pytest.raises(InfeasibleError) as refused:
        best([FAST, CHEAP], MIXED, objective=objective, limits=Limits(cost_per_step_usd=1e-9))
    assert refused.value.limit == "limits.cost_per_step_usd"
    offered = limit_in(refused.value.changes, "limits.cost_per_step_usd")
    assert cost_of(best([FAST, CHEAP], MIXED, objective=objective, limits=Limits(cost_per_step_usd=offered))) <= offered


def test_two_limits_that_exclude_each_other_are_refused_with_either_way_out() -> None:
    fastest, cheapest = best([FAST, CHEAP], MIXED), best([FAST, CHEAP], MIXED, objective=Objective.COST)
    limits = Limits(step_time_s=1.01 * fastest.step_time_s, cost_per_step_usd=1.01 * cost_of(cheapest))
    with pytest.raises(InfeasibleError) as refused:
        best([FAST, CHEAP], MIXED, limits=limits)
    for name in ("step_time_s", "cost_per_step_usd"):
        offered = limit_in(refused.value.changes, f"limits.{name}")
        best([FAST, CHEAP], MIXED, limits=dataclasses.replace(limits, **{name: offered}))


def test_a_precision_that_no_device_computes_is_refused_by_name() -> None:
    with pytest.raises(InfeasibleError, match="limit: precision bf16"):
        best([CHEAP], {"n": {"cheap": 1}}, precision=Precision.BF16)


def test_baselines_show_what_their_own_plans_replay_to_and_never_beat_the_best_by_much() -> None:
    asked = question([FAST, CHEAP], MIXED)
    found = search(asked).best
    alternatives = baselines(asked, found.plan.pipelines[0].microbatch_sequences)
    assert len(alternatives) == 3
    for one in alternatives:
        assert one.candidate is not None, one.problem
        again = simulate(one.candidate.plan, asked.costs, asked.job.limits.memory_fraction)
        assert one.candidate.step_time_s == pytest.approx(again.report.step_time_s[1])
        assert found.step_time_s <= 1.01 * one.candidate.step_time_s
