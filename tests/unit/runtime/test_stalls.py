"""Who waits for whom, on states made by hand; the actions are those of real plans."""

from collections.abc import Mapping

import pytest
from small_run import inputs, pipeline

from polyreme.layout.owners import buckets
from polyreme.runtime.stall_report import MAX_LINES, StallReport
from polyreme.runtime.stalls import Dependencies, RankState, Stall, Waits, find_stall
from polyreme.schedules.action import parse_action
from polyreme.schedules.lower import lower
from polyreme.specs.fields import ScheduleName
from polyreme.specs.job import TextData
from polyreme.specs.plan import Pipeline

NS = 10**9
NOW_S = 100.0
DEADLINE_S = 10.0
SCHEDULE = ScheduleName.ONE_F_ONE_B


def dependencies(*pipelines: Pipeline) -> Dependencies:
    given = inputs(pipelines, TextData(paths=("unused",)))
    return Dependencies(given.plan, lower(given.plan, buckets(given.plan, given.model)))


def three_stages() -> Dependencies:
    return dependencies(pipeline("a", [2, 4], 4, SCHEDULE))


def two_pipelines() -> Dependencies:
    """Ranks 0 and 1 are stages of `a`, rank 2 is all of `b`."""
    return dependencies(pipeline("a", [3], 2, SCHEDULE), pipeline("b", [], 2, SCHEDULE, base=2))


def at(known: Dependencies, rank: int, action: str, *, step: int = 5, for_s: float = 12.0, **more: bool) -> RankState:
    """The state of a rank that is in an action."""
    index = list(known.lists[rank]).index(parse_action(action))
    return RankState(step, index + 1, index, round((NOW_S - for_s) * NS), **more)


def after(known: Dependencies, rank: int, action: str, *, step: int = 5, for_s: float = 12.0) -> RankState:
    """The state of a rank that has ended an action and begun no other."""
    index = list(known.lists[rank]).index(parse_action(action)) + 1
    return RankState(step, index, index, round((NOW_S - for_s) * NS))


def stall_of(known: Dependencies, states: Mapping[int, RankState]) -> tuple[Stall | None, Waits]:
    """The stall if nothing has changed since each rank got to where it is."""
    waits = known.waits(states)
    quiet_s = {rank: NOW_S - state.since_ns / NS for rank, state in states.items()}
    return find_stall(states, waits, quiet_s, DEADLINE_S), waits


def lines_of(known: Dependencies, states: Mapping[int, RankState]) -> list[str]:
    stall, waits = stall_of(known, states)
    assert stall is not None
    workers = [f"n/w{rank}" for rank in states]
    return StallReport(stall, states, waits, known.lists, workers, round(NOW_S * NS)).lines()


def test_a_chain_leads_to_the_one_that_waits_for_nobody() -> None:
    known = three_stages()
    states = {
        0: at(known, 0, "a.0.RG2", for_s=11.8),
        1: at(known, 1, "a.1.RG2", for_s=12.0),
        2: at(known, 2, "a.2.F2", for_s=12.1, is_stopped=True),
    }
    assert stall_of(known, states) == (Stall((2,), False), {0: (1,), 1: (2,), 2: ()})
    assert lines_of(known, states) == [
        "rank 2 (n/w2) is stopped (SIGSTOP) at a.2.F2 of step 5 since 12.1 s",
        "rank 1 (n/w1) waits for it at a.1.RG2 since 12.0 s",
        "rank 0 (n/w0) waits for it at a.0.RG2 since 11.8 s",
    ]


def test_a_wait_of_another_step_says_which() -> None:
    known = three_stages()
    states = {
        0: at(known, 0, "STEP"),
        1: at(known, 1, "a.1.RA0", step=6),
        2: at(known, 2, "a.2.RA0", step=6),
    }
    assert lines_of(known, states) == [
        "rank 0 (n/w0) is at STEP of step 5 since 12.0 s and waits for nobody",
        "rank 1 (n/w1) waits for it at a.1.RA0 of step 6 since 12.0 s",
        "rank 2 (n/w2) waits for it at a.2.RA0 of step 6 since 12.0 s",
    ]


def test_several_that_wait_for_one_say_for_whom() -> None:
    known = dependencies(pipeline("a", [2], 2, SCHEDULE, groups=[[(2, 1)], [(1, 1), (1, 1)]]))
    states = {
        0: after(known, 0, "a.0.F0"),
        1: at(known, 1, "a.1.RA0"),
        2: at(known, 2, "a.1.RA0"),
    }
    assert stall_of(known, states) == (Stall((0,), False), {0: (), 1: (0,), 2: (0,)})
    assert lines_of(known, states) == [
        "rank 0 (n/w0) is between a.0.F0 and a.0.SA0 of step 5 since 12.0 s and waits for nobody",
        "rank 1 (n/w1) waits for it at a.1.RA0 since 12.0 s",
        "rank 2 (n/w2) waits for rank 0 at a.1.RA0 since 12.0 s",
    ]


def test_one_that_waits_for_several_waits_only_for_those_that_have_not_sent() -> None:
    known = dependencies(pipeline("a", [2], 2, SCHEDULE, groups=[[(1, 1), (1, 1)], [(2, 1)]]))
    states = {0: at(known, 0, "a.0.RG0"), 1: at(known, 1, "a.0.F0"), 2: at(known, 2, "a.1.RA0")}
    assert stall_of(known, states) == (Stall((1,), False), {0: (2,), 1: (), 2: (1,)})


def test_who_has_been_sent_its_message_waits_for_nobody() -> None:
    known = three_stages()
    states = {0: at(known, 0, "a.0.RG0"), 1: at(known, 1, "a.1.RA3"), 2: at(known, 2, "a.2.RA3")}
    assert stall_of(known, states) == (Stall((0,), False), {0: (), 1: (0,), 2: (1,)})


def test_a_stopped_sender_may_hold_back_what_it_has_begun_to_send() -> None:
    known = three_stages()
    states = {
        0: at(known, 0, "a.0.RG0"),
        1: at(known, 1, "a.1.RA3", is_stopped=True),
        2: at(known, 2, "a.2.RA2"),
    }
    assert stall_of(known, states) == (Stall((1,), False), {0: (1,), 1: (), 2: (1,)})


def test_the_end_of_a_step_waits_for_those_that_have_not_received() -> None:
    known = three_stages()
    states = {
        0: at(known, 0, "a.0.RG3", is_stopped=True),
        1: after(known, 1, "STEP", for_s=30.0),
        2: at(known, 2, "a.2.RA0", step=6),
    }
    assert stall_of(known, states) == (Stall((0,), False), {0: (), 1: (0,), 2: (1,)})


def test_a_reduction_waits_for_owners_that_have_not_reached_it() -> None:
    known = two_pipelines()
    states = {0: at(known, 0, "REDUCE1"), 1: at(known, 1, "REDUCE0"), 2: at(known, 2, "b.0.B1")}
    assert known.waits(states) == {0: (2,), 1: (2,), 2: ()}
    assert stall_of(known, states)[0] == Stall((2,), False)


def test_a_reduction_does_not_wait_for_an_owner_that_has_passed_it() -> None:
    known = two_pipelines()
    states = {0: at(known, 0, "REDUCE1"), 1: at(known, 1, "a.1.F0", step=6), 2: at(known, 2, "REDUCE1")}
    assert stall_of(known, states)[0] == Stall((1,), False)
    assert known.waits(states)[2] == (0,)


def test_all_in_one_reduction_wait_for_each_other() -> None:
    known = two_pipelines()
    states = {0: at(known, 0, "REDUCE1"), 1: at(known, 1, "REDUCE0"), 2: at(known, 2, "REDUCE0")}
    assert lines_of(known, states) == [
        "2 ranks wait for each other in a cycle",
        "rank 2 (n/w2) waits for rank 1 at REDUCE0 since 12.0 s",
        "rank 1 (n/w1) waits for rank 2 at REDUCE0 since 12.0 s",
        "rank 0 (n/w0) waits for rank 2 at REDUCE1 since 12.0 s",
    ]


def test_a_cycle_counts_once_all_of_it_is_overdue() -> None:
    known = dependencies(pipeline("a", [3], 4, SCHEDULE))
    states = {0: at(known, 0, "a.0.RG0"), 1: at(known, 1, "a.1.RA3", for_s=9.0)}
    waits = {0: (1,), 1: (0,)}
    assert find_stall(states, waits, {0: 12.0, 1: 9.0}, DEADLINE_S) is None
    assert find_stall(states, waits, {0: 12.0, 1: 11.0}, DEADLINE_S) == Stall((0, 1), True)


def test_a_long_wait_for_one_that_moves_is_no_stall() -> None:
    known = three_stages()
    states = {
        0: at(known, 0, "a.0.RG0", for_s=90.0),
        1: at(known, 1, "a.1.RG0", for_s=90.0),
        2: at(known, 2, "a.2.F0", for_s=9.0),
    }
    assert stall_of(known, states)[0] is None


def test_who_is_not_watched_is_at_fault_only_if_it_is_stopped() -> None:
    known = three_stages()
    states = {
        0: RankState(0, 0, 0, 0, is_watched=False),
        1: at(known, 1, "a.1.RA0", step=0),
        2: at(known, 2, "a.2.RA0", step=0),
    }
    assert stall_of(known, states)[0] is None
    states[0] = RankState(0, 0, 0, 0, is_stopped=True, is_watched=False)
    assert lines_of(known, states)[0] == (
        "rank 0 (n/w0) is stopped (SIGSTOP) before its first action of step 0 since 100.0 s"
    )


def test_of_several_the_stopped_come_first_and_then_the_longest() -> None:
    known = three_stages()
    states = {
        0: at(known, 0, "a.0.F0", for_s=11.0),
        1: at(known, 1, "a.1.F0", for_s=20.0),
        2: at(known, 2, "a.2.F0", for_s=12.0, is_stopped=True),
    }
    stall, _ = stall_of(known, states)
    assert stall == Stall((2, 1, 0), False)
    assert [line.split(" ", 2)[1] for line in lines_of(known, states)] == ["2", "1", "0"]


@pytest.mark.parametrize("num_ranks", [MAX_LINES, 40])
def test_of_many_ranks_one_chain_is_shown_and_the_rest_counted(num_ranks: int) -> None:
    """Half of the ranks wait for rank 0 in a row, the others for it at once."""
    known = dependencies(pipeline("a", [2], 2, SCHEDULE))
    lists = dict.fromkeys(range(num_ranks), known.lists[1])
    states = {rank: at(known, 1, "a.1.RA0") for rank in range(num_ranks)} | {0: at(known, 0, "a.0.F0")}
    row = num_ranks // 2
    waits: dict[int, tuple[int, ...]] = {rank: (rank - 1 if rank < row else 0,) for rank in range(1, num_ranks)}
    waits[0] = ()
    names = [f"n/w{rank}" for rank in range(num_ranks)]
    report = StallReport(Stall((0,), False), states, waits, {**lists, 0: known.lists[0]}, names, round(NOW_S * NS))
    lines = report.lines()
    assert len(report.edges()) == num_ranks - 1
    if num_ranks == MAX_LINES:
        assert len(lines) == num_ranks
    else:
        assert len(lines) == MAX_LINES + 1
        assert all(f"rank {rank} (n/w{rank}) waits for it" in lines[rank] for rank in range(1, MAX_LINES))
        assert lines[-1] == f"{num_ranks - MAX_LINES} more wait or have not moved"
