"""Timelines as data for the page and the trace."""

from pathlib import Path

from pretend_run import DEFAULT, Pretence, make_plan, pretend_run, replay

from polyreme.dashboard.figures import figures
from polyreme.dashboard.report_page import render
from polyreme.dashboard.run_folder import load_run
from polyreme.dashboard.timelines import (
    TICK_S,
    LaneSpan,
    measured_spans,
    pipeline_names,
    thin,
    timeline_data,
    trace_groups,
)
from polyreme.layout.owners import buckets
from polyreme.schedules.action import Action, Op, recorded_action
from polyreme.schedules.lower import lower
from polyreme.specs.events import OP_NUMBERS, Event


def test_measured_actions_are_those_of_the_lowered_lists(tmp_path: Path) -> None:
    pretence = Pretence(steps=2, pipelines=2)
    view = load_run(pretend_run(tmp_path / "run", pretence))
    plan = make_plan(pretence)
    lists = lower(plan, buckets(plan, pretence.model))
    spans = measured_spans(view.measured.timeline, pipeline_names(view))
    assert {rank: [s.action for s in spans if s.rank == rank] for rank in lists} == lists


def test_page_data_holds_every_span_of_both_timelines(tmp_path: Path) -> None:
    view = load_run(pretend_run(tmp_path / "run", Pretence(steps=2)))
    data = timeline_data(view, figures(view))
    assert [chart["kind"] for chart in data["charts"]] == ["measured", "predicted"]
    times = replay(make_plan(DEFAULT), DEFAULT, 1.0, 0.0, 0)
    for rank, flat in enumerate(data["charts"][1]["lanes"]):
        starts = [round(start / TICK_S) for _, start, _ in times[rank]]
        assert flat[4::7] == starts
        assert flat[0::7] == [OP_NUMBERS[action.op.value] for action, _, _ in times[rank]]
        assert flat[6::7] == [1] * len(starts)
    assert data["left_out"] == 0


def test_what_never_ended_is_marked_in_the_cut_off_chart(tmp_path: Path) -> None:
    view = load_run(pretend_run(tmp_path / "run", Pretence(steps=3, failed_rank=2)))
    data = timeline_data(view, figures(view))
    assert [chart["kind"] for chart in data["charts"]] == ["cut off", "measured", "predicted"]
    assert data["charts"][0]["lanes"][2][-7] < 0
    assert data["charts"][0]["bubble"] == [None] * 4


def test_trace_has_a_group_per_timeline_with_named_lanes(tmp_path: Path) -> None:
    view = load_run(pretend_run(tmp_path / "run", Pretence(steps=3)))
    groups = list(trace_groups(view, figures(view)))
    assert [group.name.split(",")[0] for group in groups] == ["measured", "predicted"]
    assert groups[0].lanes[3] == "rank 3 · node0/small3 · small · layers 14-15"
    assert all(start <= stop for group in groups for _, _, _, start, stop in group.spans)


def test_thinning_keeps_every_action_counted_and_the_ends() -> None:
    ops = (Op.RECV_ACTIVATION, Op.FORWARD, Op.SEND_ACTIVATION)
    spans = [
        LaneSpan(rank, Action(ops[i % 3], "a", 0, i), i * 1e-3, i * 1e-3 + 4e-4 + 2e-4 * (i % 3 == 1))
        for rank in range(2)
        for i in range(500)
    ]
    kept = thin(spans, 100)
    assert len(kept) <= 100
    assert sum(span.num_actions for span in kept) == 1000
    assert {span.rank for span in kept} == {0, 1}
    assert (kept[0].start_s, kept[-1].stop_s) == (spans[0].start_s, spans[-1].stop_s)
    assert thin(spans, 1000) == spans


def test_events_of_unknown_pipelines_still_have_a_text() -> None:
    assert str(recorded_action(Event(0, 0, 0, 3, 0, 1, "F", 0), ["a"])) == "a.1.F3"
    assert str(recorded_action(Event(0, 0, 0, 3, 0, 1, "B", 7), ["a"])) == "p7.1.B3"
    assert str(recorded_action(Event(0, 0, 0, 0, 0, 2, "REDUCE", 0), [])) == "REDUCE2"
    assert str(recorded_action(Event(0, 0, 0, 0, 0, 0, "STEP", 0), [])) == "STEP"


def test_more_lanes_than_a_page_holds_are_counted(tmp_path: Path) -> None:
    view = load_run(pretend_run(tmp_path / "run", Pretence(steps=1, microbatches=1, pipelines=17)))
    data = timeline_data(view, figures(view))
    assert len(data["lanes"]) == 64
    assert data["left_out"] == 4
    assert "The first 64 ranks are drawn, 4 are left out." in render(view)
