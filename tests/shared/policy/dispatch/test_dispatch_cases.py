"""Single histories without losses: stages, cancellations, transitions of an action."""

from __future__ import annotations

import pytest

from shared.policy.dispatch.action_state import ActionState, InvalidTransition
from shared.policy.dispatch.stimuli import ActionCancelled, AttemptStarted, BatchCancelled, TickPassed
from shared.policy.model.formulation import Advance, AnswerAction, Grant, Revoke
from shared.policy.model.results import ExecutionStatus
from tests.shared.policy.dispatch.leading import beat, ended, leading, report, submit
from tests.shared.policy.strategies import CORES, request, work

THREE = (work(name="compile"), work(name="run"), work(name="judge"))


# ---- stages ----------------------------------------------------------------------------------------------------------


def test_a_request_walks_through_its_stages_and_is_answered_with_all_of_them() -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("r", *THREE))
    for stage in (1, 2):
        advance, following = report(dispatcher, ended(grant, passed=True))
        assert isinstance(advance, Advance)
        assert (advance.action, advance.stage) == ("r", stage)
        assert [act.name for act in advance.acts] == [work.name for work in THREE[:stage]]
        assert isinstance(following, Grant)
        grant = following
    (answer,) = report(dispatcher, ended(grant, passed=True))
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, [act.name for act in answer.acts]) == ("ok", ["compile", "run", "judge"])
    assert [act.execution_s for act in answer.acts] == [2.0, 2.0, 2.0]
    assert dispatcher.registry.actions == {}


@pytest.mark.parametrize(("status", "passed", "expected"), [("ok", False, "ok"), ("timeout", None, "timeout")])
def test_a_stage_that_fails_ends_the_request(status: ExecutionStatus, passed: bool | None, expected: str) -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("r", *THREE))
    (answer,) = report(dispatcher, ended(grant, status, passed=passed))
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, len(answer.acts)) == (expected, 1)


def test_an_outcome_of_an_earlier_stage_changes_nothing() -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("r", *THREE))
    report(dispatcher, ended(grant))
    assert report(dispatcher, ended(grant), ended(grant, "lost")) == []


def test_known_ids_are_skipped() -> None:
    dispatcher = leading("n", cores=1)
    assert len(submit(dispatcher, request("r"), request("r"))) == 1
    assert submit(dispatcher, request("r")) == []
    assert len(dispatcher.registry.actions) == 1


# ---- cancelling ------------------------------------------------------------------------------------------------------


def test_queued_work_is_cancelled_at_once_and_granted_work_when_its_node_confirms() -> None:
    dispatcher = leading("n", cores=1)
    (grant,) = submit(dispatcher, request("running"), request("waiting", seq=1))
    (answer,) = dispatcher.handle(1.0, ActionCancelled("waiting", "enough"))
    assert answer == AnswerAction("waiting", "cancelled", "enough", (), queue_s=1.0)
    assert dispatcher.handle(1.0, ActionCancelled("running", "enough")) == [Revoke("running", "n", 1)]
    assert dispatcher.handle(1.0, ActionCancelled("running", "enough")) == []
    cut = AnswerAction("running", "cancelled", "enough", (), queue_s=0.0, execution_s=2.0)
    assert report(dispatcher, ended(grant, "cancelled")) == [cut]
    assert dispatcher.handle(1.0, ActionCancelled("running", "enough")) == []


def test_a_cancel_that_comes_too_late_returns_the_result() -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("r"))
    dispatcher.handle(1.0, ActionCancelled("r", "enough"))
    (answer,) = report(dispatcher, ended(grant, passed=True))
    assert isinstance(answer, AnswerAction)
    assert answer.ended == "ok"


def test_a_stage_that_passes_while_its_request_is_cancelled_is_no_verdict_on_the_whole() -> None:
    """A verdict on the compile stage alone is not a verdict on compile, run and judge."""
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("r", *THREE))
    dispatcher.handle(1.0, ActionCancelled("r", "enough"))
    (answer,) = report(dispatcher, ended(grant, passed=True))
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, answer.reason, len(answer.acts)) == ("cancelled", "enough", 1)


def test_nothing_of_a_batch_is_granted_while_it_is_cancelled() -> None:
    """The head needs many units. Without it, the requests behind it would fit, but they are cancelled next."""
    dispatcher = leading("n", cores=2)
    submit(dispatcher, request("other", work(timeout_s=1000.0)))
    wide = request("b-0", work(CORES, {"cores": 2}), batch="b")
    narrow = [request(f"b-{at}", work(timeout_s=1e4), seq=at, batch="b") for at in range(1, 4)]
    assert submit(dispatcher, wide, *narrow) == []
    commands = dispatcher.handle(1.0, BatchCancelled("b", "enough"))
    assert [type(one) for one in commands] == [AnswerAction] * 4
    dispatcher.check()


def test_a_deadline_ends_waiting_and_running_work() -> None:
    dispatcher = leading("n", cores=1)
    alien = request("alien", work(kind="cobol"), seq=2, deadline_s=5.0)
    (grant,) = submit(dispatcher, request("running", deadline_s=5.0), request("waiting", seq=1, deadline_s=5.0), alien)
    beat(dispatcher, 5.0)
    commands = dispatcher.handle(5.0, TickPassed())
    reasons = {one.action: one.reason for one in commands if isinstance(one, AnswerAction)}
    assert reasons == {
        "waiting": "its deadline came while it waited for cores@cpu",
        "alien": "no node of class 'cpu' offers cobol with cores=1",
    }
    assert Revoke("running", "n", 1) in commands
    (answer,) = report(dispatcher, ended(grant, "cancelled"))
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, answer.reason) == ("expired", "its deadline came while it ran")


# ---- transitions -----------------------------------------------------------------------------------------------------


def test_a_transition_that_the_table_does_not_have_lists_the_past_states() -> None:
    action = ActionState(request("r"))
    action.move("granted")
    action.move("cancelling")
    with pytest.raises(InvalidTransition, match="r: queued -> granted -> cancelling -> queued"):
        action.move("queued")
    assert action.state == "cancelling"


def test_only_the_current_attempt_is_reported_as_running() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("r"))
    dispatcher.handle(0.0, AttemptStarted("r", 2))
    dispatcher.handle(0.0, AttemptStarted("unknown", 1))
    before = dispatcher.registry.actions["r"].state
    dispatcher.handle(0.0, AttemptStarted("r", 1))
    assert (before, dispatcher.registry.actions["r"].state) == ("granted", "running")
