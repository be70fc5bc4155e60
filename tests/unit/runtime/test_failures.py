"""Scripted faults as text, and who is to blame."""

import pytest

from polyreme.errors import InputError
from polyreme.runtime.faults import Fault, FaultKind, InjectedFaultError, parse_fault
from polyreme.runtime.launch import Failure, root_cause
from polyreme.schedules.action import parse_action


def test_a_fault_prints_and_parses_back() -> None:
    fault = Fault(1, 2, parse_action("a.1.F3"), FaultKind.KILL)
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    "text", ["", "rank=1", "rank=x,step=1,action=STEP,kind=kill", "rank=1,step=1,action=Q,kind=kill"]
)
def test_a_wrong_fault_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write it like"):
        parse_fault(text)


def test_a_fault_strikes_at_its_place_only() -> None:
    fault = parse_fault("rank=1,step=2,action=a.1.F3,kind=raise")
    fault.strike(0, 2, fault.action)
    fault.strike(1, 1, fault.action)
    fault.strike(1, 2, parse_action("a.1.B3"))
    with pytest.raises(InjectedFaultError):
        fault.strike(1, 2, fault.action)


def test_the_loss_of_a_peer_is_never_blamed_while_another_cause_is_known() -> None:
    lost = Failure(0, None, {"type": "failed", "peer_lost": True})
    raised = Failure(2, None, {"type": "failed", "peer_lost": False})
    killed = Failure(1, -9, None)
    assert root_cause([lost, raised]) is raised
    assert root_cause([lost, killed, raised]) is killed
    assert root_cause([lost]) is lost
