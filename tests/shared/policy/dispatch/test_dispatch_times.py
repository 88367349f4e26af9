"""Times of an answer: queueing before its last attempt began, execution, and nothing counted twice."""

from __future__ import annotations

import pytest

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    ActionRestored,
    AttemptStarted,
    InventoryReported,
    NodeLost,
    TickPassed,
)
from shared.policy.model.formulation import AnswerAction, AskInventory, Command, FailedCalls, Grant, Revoke, StageAct
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.shared.policy.dispatch.leading import beat, leading, meet, submit
from tests.shared.policy.strategies import SPECS, joined, node, reported, request, submitted, work

TWO = (work(name="compile"), work(name="run"))


def end(status: ExecutionStatus, *, queue_s: float, execution_s: float, attempt: int = 1, stage: int = 0) -> Ended:
    return Ended(
        "r", "n", attempt, stage, AttemptResult(status, reason="reported"), queue_s=queue_s, execution_s=execution_s
    )


def times(commands: list[Command]) -> tuple[float, float]:
    """Return (queueing, execution) of the only answer, summed over its stages."""
    (answer,) = (one for one in commands if isinstance(one, AnswerAction))
    queue_s = sum(act.queue_s for act in answer.acts) + answer.queue_s
    return queue_s, sum(act.execution_s for act in answer.acts) + answer.execution_s


def test_a_request_that_expires_in_the_queue_has_only_queued() -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, request("other"), request("r", seq=1, deadline_s=3.5))
    beat(dispatcher, 3.75)
    assert times(dispatcher.handle(3.75, TickPassed())) == (3.75, 0.0)


def test_a_request_rejected_as_too_late_has_only_queued() -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, request("other", work(timeout_s=100.0)))
    assert times(dispatcher.handle(0.5, submitted(request("r", at_s=0.25, start_by_s=2.0)))) == (0.25, 0.0)


@pytest.mark.parametrize("status", ["cancelled", "refused"])
def test_an_attempt_that_was_cut_short_counts_as_its_node_reports_it(status: ExecutionStatus) -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r")))
    if status == "cancelled":
        dispatcher.handle(3.0, ActionCancelled("r", "enough"))
    assert times(dispatcher.handle(3.5, reported(end(status, queue_s=0.25, execution_s=2.0)))) == (1.25, 2.0)


def test_work_of_a_lost_node_has_executed_since_its_reported_start() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", work(repeatable=False))))
    dispatcher.handle(1.5, AttemptStarted("r", 1))
    assert times(dispatcher.handle(4.0, NodeLost("n", "burnt"))) == (1.5, 2.5)


def test_work_lost_before_its_reported_start_has_queued() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", work(repeatable=False))))
    assert times(dispatcher.handle(4.0, NodeLost("n", "burnt"))) == (4.0, 0.0)


def test_work_lost_while_it_is_cancelled_has_executed_until_then() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r")))
    dispatcher.handle(1.5, AttemptStarted("r", 1))
    dispatcher.handle(3.0, ActionCancelled("r", "enough"))
    assert times(dispatcher.handle(4.0, NodeLost("n", "burnt"))) == (1.5, 2.5)


def test_lost_attempts_are_queueing_of_the_one_that_counts() -> None:
    dispatcher = leading("n")
    dispatcher.handle(0.0, submitted(request("r")))
    dispatcher.handle(0.5, AttemptStarted("r", 1))
    (again,) = dispatcher.handle(5.0, reported(end("lost", queue_s=0.0, execution_s=5.0)))
    assert isinstance(again, Grant)
    assert times(dispatcher.handle(7.5, reported(end("ok", queue_s=0.25, execution_s=2.0, attempt=2)))) == (
        5.25,
        2.0,
    )


def test_a_stage_that_was_cut_short_is_counted_after_those_with_a_verdict() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", *TWO, at_s=1.0)))
    dispatcher.handle(3.0, reported(end("ok", queue_s=0.5, execution_s=1.0)))
    dispatcher.handle(4.0, ActionCancelled("r", "enough"))
    commands = dispatcher.handle(5.0, reported(end("cancelled", queue_s=0.25, execution_s=1.5, stage=1)))
    (answer,) = (one for one in commands if isinstance(one, AnswerAction))
    assert [(act.queue_s, act.execution_s) for act in answer.acts] == [(0.5, 1.0)]
    assert (answer.queue_s, answer.execution_s) == (0.25, 1.5)


# ---- executions that began under another leader, or under an older grant ---------------------------------------------


def restored(now: float, stage: int = 0) -> Dispatcher:
    """A leader that takes over now; the action was granted on n by the former one."""
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(now, submitted(request("r", *TWO[: stage + 1])))
    acts = [StageAct("compile", 1.0, 2.0, "n", 1, 1)][:stage]
    dispatcher.handle(now, ActionRestored("r", stage, 1, tuple(acts), "n"))
    return dispatcher


def test_an_execution_that_lies_before_the_takeover_is_not_queueing_as_well() -> None:
    dispatcher = restored(6.5)
    queue_s, execution_s = times(dispatcher.handle(6.625, reported(end("ok", queue_s=0.25, execution_s=0.5))))
    assert (queue_s, execution_s) == (6.125, 0.5)


def test_times_of_earlier_stages_are_not_queueing_of_the_next_one() -> None:
    dispatcher = restored(6.5, stage=1)
    queue_s, execution_s = times(dispatcher.handle(6.75, reported(end("ok", queue_s=0.0, execution_s=0.5, stage=1))))
    assert (queue_s, execution_s) == (1.0 + 3.25, 2.0 + 0.5)


def test_adopted_work_has_executed_since_the_start_its_node_reports() -> None:
    dispatcher = restored(6.0)
    dispatcher.handle(6.0, ActionCancelled("r", "enough"))
    assert dispatcher.handle(6.0, joined(node("n"))) == [AskInventory("n")]
    dispatcher.handle(6.5, InventoryReported("n", "1", {"r": HeldGrant(0, 1, 2.5)}))
    assert times(dispatcher.handle(8.0, NodeLost("n", "burnt"))) == (4.0, 4.0)


def test_a_verdict_of_an_older_attempt_is_not_counted_from_the_newest_grant() -> None:
    """Granted on n at 0, counted as lost at 5, granted again; n's verdict of 4.5 s arrives at 6."""
    dispatcher = leading("n")
    dispatcher.handle(0.0, submitted(request("r")))
    dispatcher.handle(5.0, NodeLost("n", "silent"))
    meet(dispatcher, "m")
    assert times(dispatcher.handle(6.0, reported(end("ok", queue_s=0.0, execution_s=4.5)))) == (1.5, 4.5)


def test_restored_stages_have_passed_with_all_their_parts() -> None:
    """Time for which an earlier stage was parked is not queueing of the next one."""
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(100.0, submitted(request("r", *TWO, at_s=0.0, deadline_s=200.0)))
    dispatcher.handle(100.0, ActionRestored("r", 1, 0, (StageAct("compile", 2.0, 3.0, "n", 1, 1, parked_s=40.0),), ""))
    (answer,) = dispatcher.handle(100.0, ActionCancelled("r", "enough"))
    assert isinstance(answer, AnswerAction)
    assert answer.queue_s == 55.0


# ---- waits for model services ----------------------------------------------------------------------------------------


def restored_end(status: ExecutionStatus, restore_s: float, *, execution_s: float, attempt: int = 1) -> Ended:
    return Ended("r", "n", attempt, 0, AttemptResult(status, restore_s=restore_s), execution_s=execution_s)


def parts(commands: list[Command]) -> tuple[float, float, float]:
    """Return (queueing, execution, waits for model services) of the only answer, summed over its stages."""
    (answer,) = (one for one in commands if isinstance(one, AnswerAction))
    return *times(commands), sum(act.restore_s for act in answer.acts) + answer.restore_s


def test_a_wait_for_a_model_service_is_neither_queueing_nor_execution() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r")))
    assert parts(dispatcher.handle(9.0, reported(restored_end("ok", 5.0, execution_s=3.0)))) == (1.0, 3.0, 5.0)


def test_waits_of_lost_attempts_count_once() -> None:
    dispatcher = leading("n")
    dispatcher.handle(0.0, submitted(request("r")))
    dispatcher.handle(6.0, reported(restored_end("lost", 4.0, execution_s=2.0)))
    ended = dispatcher.handle(9.0, reported(restored_end("ok", 1.0, execution_s=2.0, attempt=2)))
    assert parts(ended) == (2.0, 2.0, 5.0)


@pytest.mark.parametrize("restore_s", [float("nan"), float("inf"), -5.0])
def test_a_wait_that_is_no_time_counts_nothing(restore_s: float) -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", at_s=1.0)))
    assert parts(dispatcher.handle(5.0, reported(restored_end("ok", restore_s, execution_s=2.0)))) == (0.0, 2.0, 0.0)


def test_a_wait_is_cut_to_the_time_that_has_passed() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", at_s=1.0)))
    assert parts(dispatcher.handle(5.0, reported(restored_end("ok", 99.0, execution_s=1.0)))) == (0.0, 1.0, 3.0)


def test_a_wait_is_no_execution_of_the_history() -> None:
    """The expected time of the next action of its kind is that of the execution alone."""
    dispatcher = leading("n")
    dispatcher.handle(0.0, submitted(request("r")))
    dispatcher.handle(60.0, reported(restored_end("ok", 58.0, execution_s=2.0)))
    dispatcher.handle(60.0, submitted(request("next", seq=2)))
    assert dispatcher.registry.actions["next"].expected_s == pytest.approx(2.0)


def test_a_stage_that_is_restored_after_a_takeover_keeps_its_wait() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(100.0, submitted(request("r", *TWO, at_s=0.0, deadline_s=200.0)))
    known = StageAct("compile", 2.0, 3.0, "n", 1, 1, restore_s=40.0)
    dispatcher.handle(100.0, ActionRestored("r", 1, 0, (known,), ""))
    assert parts(dispatcher.handle(100.0, ActionCancelled("r", "enough"))) == (2.0 + 55.0, 3.0, 40.0)


def not_ready(status: ExecutionStatus, ready_in_s: float, attempt: int = 1) -> Ended:
    result = AttemptResult(status, reason="it is restored", restore_s=2.0, ready_in_s=ready_in_s, retry_in_s=1.0)
    return Ended("r", "n", attempt, 0, result)


def only_answer(commands: list[Command]) -> AnswerAction:
    (answer,) = (one for one in commands if isinstance(one, AnswerAction))
    return answer


@pytest.mark.parametrize(("ready_in_s", "retry_in_s"), [(7.0, 7.0), (0.01, 1.0), (1e9, 3600.0)])
def test_a_deadline_during_a_restore_names_its_expected_end(ready_in_s: float, retry_in_s: float) -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", at_s=1.0, deadline_s=3.0)))
    assert dispatcher.handle(3.0, TickPassed()) == [Revoke("r", "n", 1)]
    answer = only_answer(dispatcher.handle(3.0, reported(not_ready("cancelled", ready_in_s))))
    assert (answer.ended, answer.retry_in_s, answer.restore_s) == ("expired", retry_in_s, 2.0)
    assert "not resident" in answer.reason


def test_a_deadline_that_the_node_sees_first_names_the_same() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", at_s=1.0, deadline_s=3.0)))
    dispatcher.handle(2.9, reported(not_ready("postponed", 7.0)))
    answer = only_answer(dispatcher.handle(3.9, TickPassed()))
    assert answer.ended == "expired"
    assert answer.retry_in_s == pytest.approx(6.0)
    assert answer.reason == "it is restored"


def test_a_later_attempt_forgets_the_restore_of_an_earlier_one() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", at_s=1.0, deadline_s=9.0)))
    dispatcher.handle(2.0, reported(not_ready("postponed", 7.0)))
    beat(dispatcher, 5.0)
    dispatcher.handle(5.0, TickPassed())
    assert dispatcher.registry.actions["r"].state == "granted"
    dispatcher.handle(9.0, TickPassed())
    end = Ended("r", "n", 2, 0, AttemptResult("cancelled"))
    assert only_answer(dispatcher.handle(9.0, reported(end))).retry_in_s == 0.0


def test_failed_calls_are_carried_to_the_next_attempt_and_not_to_the_next_stage() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", *TWO, at_s=1.0, deadline_s=9.0)))

    def granted_after(now: float, attempt: int, result: AttemptResult) -> FailedCalls | None:
        commands = dispatcher.handle(now, reported(Ended("r", "n", attempt, 0, result)))
        beat(dispatcher, now + 1.0)
        commands += dispatcher.handle(now + 1.0, TickPassed())
        (grant,) = (one for one in commands if isinstance(one, Grant))
        return grant.failed_calls

    failed = AttemptResult("postponed", failed_calls=FailedCalls(2, 1))
    assert granted_after(2.0, 1, failed) == (2, 1)
    assert granted_after(4.0, 2, AttemptResult("lost")) == (2, 1)
    assert granted_after(6.0, 3, AttemptResult("ok", True)) is None


def test_a_cancelled_action_has_no_time_for_a_retry() -> None:
    dispatcher = leading("n")
    dispatcher.handle(1.0, submitted(request("r", at_s=1.0, deadline_s=9.0)))
    dispatcher.handle(2.0, ActionCancelled("r", "enough"))
    answer = only_answer(dispatcher.handle(2.5, reported(not_ready("cancelled", 7.0))))
    assert (answer.ended, answer.reason, answer.retry_in_s) == ("cancelled", "enough", 0.0)


def test_usage_of_an_orphan_counts_when_its_node_reports_it() -> None:
    dispatcher = leading("n", "m", cores=1)
    (first,) = submit(dispatcher, request("r"))
    dispatcher.handle(1.0, NodeLost(first.node, "silent"))
    held = {"r": HeldGrant(0, 1, 2.0, {"cores": 1})}
    assert Revoke("r", first.node, 1) in meet(dispatcher, first.node, held, cores=1)
    for _ in range(2):
        dispatcher.handle(3.0, reported(used(first.node, 1, "cancelled", cpu_s=7.0)))
    (other,) = {"n", "m"} - {first.node}
    (answer,) = dispatcher.handle(4.0, reported(used(other, 2, "ok", cpu_s=1.0)))
    assert isinstance(answer, AnswerAction)
    assert [act.usage for act in answer.acts] == [{"cpu_s": 8.0}]


def used(node: str, attempt: int, status: ExecutionStatus, *, cpu_s: float) -> Ended:
    return Ended("r", node, attempt, 0, AttemptResult(status, usage={"cpu_s": cpu_s}))
