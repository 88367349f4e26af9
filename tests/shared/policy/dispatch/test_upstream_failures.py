"""Calls of external services whose budget ends between two attempts: the last failure is the end, masked."""

from __future__ import annotations

from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import NodeLost, TickPassed
from shared.policy.model.formulation import INFRASTRUCTURE_FAILURES, AnswerAction, Command, FailedCalls, Grant
from shared.policy.model.quotas import QuotaLimits
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from tests.shared.policy.dispatch.leading import beat, leading, submit
from tests.shared.policy.strategies import reported, request, work

BUDGET_S = 10.0
LIMITED = "HTTP 429 from search.example.com"
PUSHED_BACK = AttemptResult("postponed", reason=LIMITED, retry_in_s=4.0, failed_calls=FailedCalls())


def calling(quotas: dict[str, float] | None = None) -> tuple[Dispatcher, Grant]:
    dispatcher = leading("n")
    dispatcher.handle(0.0, QuotaSet("search", QuotaLimits((1.0,))))
    (grant,) = submit(dispatcher, request("a", replace(work(), quotas=quotas or {}), deadline_s=BUDGET_S))
    return dispatcher, grant


def end(dispatcher: Dispatcher, now: float, attempt: int, result: AttemptResult) -> list[Command]:
    commands = dispatcher.handle(now, reported(Ended("a", "n", attempt, 0, result, execution_s=0.1)))
    dispatcher.check()
    return commands


def answer_of(dispatcher: Dispatcher, now: float = BUDGET_S) -> AnswerAction:
    beat(dispatcher, now)
    (answer,) = [one for one in dispatcher.handle(now, TickPassed()) if isinstance(one, AnswerAction)]
    dispatcher.check()
    return answer


def test_a_call_that_the_provider_keeps_declining_ends_as_its_failure() -> None:
    dispatcher, _ = calling()
    end(dispatcher, 1.0, 1, PUSHED_BACK)
    assert [one.attempt for one in dispatcher.handle(5.0, TickPassed()) if isinstance(one, Grant)] == [2]
    end(dispatcher, 7.0, 2, PUSHED_BACK)
    answer = answer_of(dispatcher)
    assert (answer.ended, answer.reason) == ("upstream-failed", f"{LIMITED}; its budget ended before the next attempt")
    assert (answer.ended in INFRASTRUCTURE_FAILURES, answer.acts, answer.retry_in_s) == (True, (), 0.0)


def test_a_call_that_has_never_been_made_expires() -> None:
    dispatcher, _ = calling({"search": 1.0})
    submit(dispatcher, request("b", replace(work(), quotas={"search": 1.0}), seq=1, deadline_s=5.0))
    answer = answer_of(dispatcher, 5.0)
    assert (answer.action, answer.ended) == ("b", "expired")


def test_a_call_whose_newest_attempt_was_lost_has_not_failed_at_the_provider() -> None:
    dispatcher, _ = calling()
    end(dispatcher, 1.0, 1, PUSHED_BACK)
    dispatcher.handle(5.0, TickPassed())
    dispatcher.handle(6.0, NodeLost("n", "it has stopped"))
    answer = answer_of(dispatcher)
    assert (answer.ended, LIMITED in answer.reason) == ("expired", False)


def test_a_call_that_its_quota_never_lets_start_again_expires_with_the_reason_of_the_quota() -> None:
    dispatcher, _ = calling({"search": 1.0})
    end(dispatcher, 1.0, 1, PUSHED_BACK)
    dispatcher.handle(2.0, QuotaSet("search", QuotaLimits((0.5,))))
    dispatcher.handle(5.0, TickPassed())
    answer = answer_of(dispatcher)
    assert (answer.ended, "whose concurrency is 0.5" in answer.reason) == ("expired", True)


def test_work_that_no_external_service_has_failed_expires_as_before() -> None:
    dispatcher, _ = calling()
    end(dispatcher, 1.0, 1, AttemptResult("postponed", reason="its load is late", retry_in_s=20.0))
    assert answer_of(dispatcher).ended == "expired"
