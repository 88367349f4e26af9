"""Answers as the leader writes them: what the trace of a trajectory shows of each."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from services.proxy.leader.answerings import MOST_SHOWN, to_answering
from services.proxy.leader.unanswered import Unanswered
from shared.bus.traces import TracedAction, TracedStage
from shared.messages.actions import ActionSubmitted
from shared.policy.model.formulation import AnswerAction, EndedAs, StageAct
from shared.policy.model.results import AttemptResult
from tests.services.proxy.mesh import stage, submitted

COMPILED = StageAct("compile", 0.5, 1.0, "n", 1, 2, {}, 0.25)
REWARD = msgspec.structs.replace(
    submitted("a1", stage("compile"), stage("run"), batch="b1"), for_trajectory="t1", request="r1"
)
ACTED = msgspec.structs.replace(submitted("a1", stage("run", kind="env.exec")), trajectory="t1")


def traced(request: ActionSubmitted, answer: AnswerAction, result: AttemptResult | None = None) -> TracedAction:
    answering = to_answering(Unanswered("100000-0", 100.0, request, 0, result), answer, 60, 110.0)
    assert answering.traced_by == "t1"
    return msgspec.msgpack.decode(answering.span, type=TracedAction)


def ended(how: EndedAs, *acts: StageAct, **rest: float) -> AnswerAction:
    return replace(AnswerAction("a1", how, "why", acts), **rest)


def test_a_graded_request_has_its_task_its_score_and_its_stages() -> None:
    ran = StageAct("run", 2.0, 3.0, "m", 2, 1, {})
    assert traced(REWARD, ended("ok", COMPILED, ran), AttemptResult("ok", True, 0.75)) == TracedAction(
        name="t",
        arrived_s=100.0,
        total_s=10.0,
        queue_s=2.5,
        execution_s=4.0,
        ended="ok",
        reason="why",
        passed=True,
        score=0.75,
        request="r1",
        batch="b1",
        stages=(TracedStage("compile", "n", 2, 1, 0.5, 1.0, 0.25), TracedStage("run", "m", 1, 2, 2.0, 3.0, 0.0)),
        in_environment=False,
    )


def test_an_action_in_the_environment_has_its_kind() -> None:
    found = traced(ACTED, ended("ok", StageAct("run", 0.0, 1.0, "n", 1, 1, {})), AttemptResult("ok", False))
    assert (found.name, found.in_environment, found.passed, found.score) == ("env.exec", True, False, None)


@pytest.mark.parametrize("how", ["cancelled", "expired", "node-lost", "unknown-outcome", "environment-lost"])
def test_the_stage_in_which_it_ended_without_a_verdict_is_shown_and_nothing_is_scored(how: EndedAs) -> None:
    answer = ended(how, COMPILED, queue_s=4.0, execution_s=2.0, parked_s=1.0)
    found = traced(REWARD, answer, AttemptResult("ok", True, 1.0))
    assert (found.ended, found.passed, found.score) == (how, None, None)
    assert (found.queue_s, found.execution_s) == (4.5, 3.0)
    assert found.stages[1:] == (TracedStage("run", "", 0, 0, 4.0, 2.0, 1.0),)


def test_a_time_limit_has_its_score_and_an_unstarted_stage_is_not_shown() -> None:
    found = traced(REWARD, ended("timeout", COMPILED), AttemptResult("timeout"))
    assert (found.passed, found.score, len(found.stages)) == (None, -1.0, 1)


def test_an_unreadable_request_has_a_name_and_a_long_reason_is_cut() -> None:
    unreadable = ActionSubmitted(action="a1", tenant="", trajectory="t1", stages=(), budget_s=0.0)
    found = traced(unreadable, replace(ended("refused", queue_s=1.0), reason="é" * 500))
    assert (found.name, found.reason, found.stages) == ("action", "é" * MOST_SHOWN, ())


def test_other_answers_are_in_no_trace() -> None:
    answering = to_answering(Unanswered("100000-0", 100.0, submitted("a1"), 0), ended("ok"), 60, 110.0)
    assert (answering.traced_by, answering.span) == ("", b"")
