"""Reasons why actions wait: by name up to a bound, by class beyond it."""

from __future__ import annotations

import pytest

from shared.policy.dispatch import waiting_reasons
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptParked, CreationReported, ResumeRequested, TickPassed
from shared.policy.model.formulation import AnswerAction, Grant
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.model.waiting import WaitingReason, WaitingReasons, begins_class, work_class
from tests.shared.policy.dispatch.leading import beat, leading, submit
from tests.shared.policy.dispatch.test_dispatch_trajectories import leading as leading_limited
from tests.shared.policy.dispatch.test_environment_starts import MEMORY, limited, starting
from tests.shared.policy.strategies import CORES, SPECS, reported, request, work

WIDE = work(units={"cores": 999})
ALIEN = work("gpus@cpu", {"gpus": 1})


def stuck(what: str) -> WaitingReason:
    return WaitingReason("stuck", f"no node of class 'cpu' offers {what} now; it waits for one until its budget ends")


def test_what_waits_for_its_turn_has_no_reason() -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, *(request(f"r{n}", seq=n) for n in range(3)))
    assert dispatcher.waiting_reasons() == WaitingReasons()


def test_stuck_actions_have_a_reason_each() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("fine"), request("s", ALIEN, seq=1), request("t", WIDE, seq=2))
    assert dispatcher.waiting_reasons().actions == {
        ("s", 0): stuck("run with gpus=1"),
        ("t", 0): stuck("run with cores=999"),
    }
    assert dispatcher.waiting_reasons().classes == {}


def test_beyond_the_bound_a_class_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_reasons, "MOST_NAMED", 1)
    dispatcher = leading("n")
    submit(dispatcher, request("s", ALIEN), request("t", WIDE, seq=1), request("u", WIDE, seq=2))
    found = dispatcher.waiting_reasons()
    assert len(found.actions) == 1
    assert found.classes == {
        "gpus@cpu run gpus=1": stuck("run with gpus=1"),
        f"{CORES} run cores=999": stuck("run with cores=999"),
    }
    monkeypatch.setattr(waiting_reasons, "MOST_CLASSES", 1)
    assert len(dispatcher.waiting_reasons().classes) == 1


def test_environments_beyond_the_bound_have_one_reason_for_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_reasons, "MOST_NAMED", 2)
    leader = leading_limited(limited(cores=4, starts=1, memory=3))
    submit(leader, *(starting(f"a{n}", f"t{n}", n, memory=2) for n in range(5)))
    found = leader.waiting_reasons()
    reason = WaitingReason(
        "held up",
        f"it waits to begin its environment, with 4 in {CORES}: "
        "the memory for environments is taken and the limit of concurrent environment starts is reached",
    )
    assert set(found.actions.values()) == {reason}
    assert (len(found.actions), found.classes) == (2, {begins_class(CORES): reason})


def test_an_environment_that_no_node_can_hold_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_reasons, "MOST_NAMED", 0)
    leader = leading_limited(limited(cores=4, starts=1, memory=3))
    submit(leader, starting("a", "t", 0, memory=9))
    need = leader.registry.actions["a"].request.need
    action = leader.registry.actions["a"]
    assert need is not None
    key = work_class(CORES, action.work.kind, action.work.units, {}, need.kind, need.units)
    assert leader.waiting_reasons().classes[key].text.startswith("no node of class 'cpu' offers ")
    assert f"{MEMORY}=9" in leader.waiting_reasons().classes[key].text


def test_a_postponed_action_has_the_reason_of_its_last_attempt() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("a", deadline_s=9.0))
    later = AttemptResult("postponed", reason="HTTP 500", retry_in_s=3.0)
    dispatcher.handle(0.0, reported(Ended("a", "n", 1, 0, later)))
    assert dispatcher.waiting_reasons() == WaitingReasons({("a", 0): WaitingReason("postponed", "HTTP 500")})
    beat(dispatcher, 4.0)
    dispatcher.handle(4.0, TickPassed())
    assert dispatcher.waiting_reasons() == WaitingReasons({})


def test_a_lost_action_waits_for_the_pause_that_its_node_asks_for_and_counts_its_attempts() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("a", deadline_s=60.0))
    failed = AttemptResult("lost", reason="the engine answered 500", retry_in_s=0.5)
    now = 0.0
    for attempt in (1, 2):
        assert dispatcher.handle(now, reported(Ended("a", "n", attempt, 0, failed))) == []
        reason = WaitingReason("postponed", "the engine answered 500")
        assert dispatcher.waiting_reasons() == WaitingReasons({("a", 0): reason})
        assert not [one for one in dispatcher.handle(now + 0.4, TickPassed()) if isinstance(one, Grant)]
        now += 0.6
        beat(dispatcher, now)
        dispatcher.handle(now, TickPassed())
        assert dispatcher.registry.actions["a"].attempt == attempt + 1
    (answer,) = dispatcher.handle(now, reported(Ended("a", "n", 3, 0, failed)))
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, answer.reason) == ("sandbox-lost", "the engine answered 500; 3 attempts")


def test_a_class_has_its_literal_name() -> None:
    assert work_class("cores@cpu", "run", {"b": 2, "a": 1}, {}) == "cores@cpu run a=1 b=2"
    lasting = {"memory_mb": 512}
    assert work_class("cores@cpu", "run", {"cores": 1}, {"tokens": 1.5}, "runtime.local", lasting) == (
        "cores@cpu run cores=1 in runtime.local memory_mb=512 of tokens=1.5"
    )
    assert begins_class("cores@cpu") == "cores@cpu begins"


def test_parked_actions_and_those_that_continue_have_a_reason() -> None:
    leader = leading_limited(limited(cores=1, starts=1, memory=9))
    submit(leader, starting("a", "t", 0), starting("b", "u", 1))
    leader.handle(1.0, CreationReported("a", "1", "t"), AttemptParked("a", 1))
    assert leader.waiting_reasons().actions["a", 0] == WaitingReason(
        "parked", "it is parked and waits for something outside the mesh"
    )
    leader.handle(2.0, ResumeRequested("a"))
    assert leader.waiting_reasons().actions["a", 0] == WaitingReason(
        "resuming", f"it was parked and waits for {CORES} to continue"
    )


def test_a_mesh_without_nodes_names_all_that_waits() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    submit(dispatcher, request("r"), request("s", seq=1))
    assert {action for action, _ in dispatcher.waiting_reasons().actions} == {"r", "s"}
