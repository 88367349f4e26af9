"""Answers to callers: verdicts scored, infrastructure failures masked, and the time by its parts."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.proxy.records.answering import compose, reports
from shared.api.requests import Act, Answer
from shared.messages.actions import ActionSubmitted
from shared.policy.model.formulation import AnswerAction, EndedAs, StageAct
from shared.policy.model.results import AttemptResult
from tests.services.proxy.mesh import stage

SUBMITTED = ActionSubmitted(
    action="a", tenant="ada", task="t", batch="b", request="r1", stages=(), budget_s=60.0, timeout_score=-1.0
)
OK = AttemptResult("ok", True, 0.75, output=b'{"x":1}', usage={"cpu_s": 0.5}, peak_memory_bytes=7)
ACTS = (
    StageAct("compile", 0.5, 1.0, "n", 1, 2, {"cpu_s": 2.0, "tokens": 10.0}),
    StageAct("run", 0.25, 3.0, "m", 2, 1, {"cpu_s": 0.75, "money": 0.5}),
)

VERDICTS = {"ok", "timeout"}


def composed(
    ended: EndedAs, finished: AttemptResult | None = OK, *, acts: tuple[StageAct, ...] = ACTS, index: int = 4
) -> Answer:
    """The answer without its output, which only a dict can be read into."""
    read = document(ended, finished, acts=acts, index=index)
    return msgspec.convert({name: value for name, value in read.items() if name != "output"}, Answer)


def document(
    ended: EndedAs, finished: AttemptResult | None = OK, *, acts: tuple[StageAct, ...] = ACTS, index: int = 4
) -> dict[str, Any]:
    body = compose(SUBMITTED, index, AnswerAction("a", ended, "why", acts), finished, 100.0, 105.0)
    return msgspec.json.decode(body, type=dict[str, Any])


def test_a_verdict_carries_its_score_and_everything_that_was_measured() -> None:
    answer = composed("ok")

    assert (answer.id, answer.request_id, answer.task, answer.batch, answer.index) == ("a", "r1", "t", "b", 4)
    assert (answer.state, answer.ended, answer.mask, answer.passed, answer.score) == (
        "finished",
        "ok",
        False,
        True,
        0.75,
    )
    assert (answer.reason, answer.cpu_s, answer.peak_memory_bytes) == ("why", 0.5, 7)
    assert document("ok")["output"] == {"x": 1}


@pytest.mark.parametrize("ended", sorted(set(get_args(EndedAs)) - VERDICTS))
@pytest.mark.parametrize("finished", [OK, None], ids=["after a verdict", "without one"])
def test_ends_without_a_verdict_are_masked_and_never_scored(ended: EndedAs, finished: AttemptResult | None) -> None:
    answer = composed(ended, finished)

    assert (answer.ended, answer.mask, answer.passed, answer.score) == (ended, True, None, None)


@pytest.mark.parametrize("ended", sorted(VERDICTS))
def test_a_verdict_is_never_masked(ended: EndedAs) -> None:
    assert not composed(ended).mask


def test_a_timeout_has_the_score_the_task_names_for_it() -> None:
    assert composed("timeout", AttemptResult("timeout", score=0.75)).score == -1.0
    assert composed("timeout", None).score == -1.0


@pytest.mark.parametrize(
    ("own", "reached", "score"),
    [
        ((-2.0, -3.0), 1, -2.0),
        ((-2.0, -3.0), 2, -3.0),
        ((None, -3.0), 1, -1.0),
        ((0.0, None), 1, 0.0),
        ((0.0, None), 2, -1.0),
    ],
)
def test_the_timeout_score_of_a_stage_takes_precedence_over_the_tasks(
    own: tuple[float | None, float | None], reached: int, score: float
) -> None:
    stages = tuple(
        msgspec.structs.replace(stage(act.name), timeout_score=its) for act, its in zip(ACTS, own, strict=True)
    )
    submitted = msgspec.structs.replace(SUBMITTED, stages=stages)
    shown_as: list[tuple[EndedAs, float | None]] = [("timeout", score), ("ok", 0.75), ("expired", None)]
    for ended, shown in shown_as:
        body = compose(submitted, 0, AnswerAction("a", ended, "", ACTS[:reached]), OK, 1.0, 2.0)
        assert msgspec.json.decode(body).get("score") == shown


def test_time_is_queueing_and_execution_and_the_rest() -> None:
    act = composed("ok").act

    assert act is not None
    assert (act.queue_s, act.execution_s, act.total_s) == (0.75, 4.0, 5.0)
    assert act.overhead_s == pytest.approx(0.25)


def test_an_end_without_a_verdict_is_shown_with_what_it_had_queued_and_executed() -> None:
    act = measured(AnswerAction("a", "cancelled", "why", ACTS[:1], queue_s=0.25, execution_s=2.0), 105.0)

    assert (act.queue_s, act.execution_s, act.overhead_s, act.total_s) == (0.75, 3.0, 1.25, 5.0)


def test_the_wait_for_a_model_service_is_a_named_part_of_the_overhead() -> None:
    judged = StageAct("judge", 0.5, 1.0, "n", 1, 1, restore_s=2.0)
    act = measured(AnswerAction("a", "expired", "", (judged,), restore_s=1.25), 105.0)

    assert (act.execution_s, act.overhead_s, act.restore_s, act.total_s) == (1.0, 3.5, 3.25, 5.0)


@given(parts=st.lists(st.floats(0, 1e6), min_size=4, max_size=4), lasted_s=st.floats(0, 1e7))
def test_every_answer_adds_up_to_the_last_bit(parts: list[float], lasted_s: float) -> None:
    acts = (StageAct("run", parts[0], parts[1], "n", 1, 1),)
    act = measured(AnswerAction("a", "expired", "", acts, parts[2], parts[3]), 100.0 + lasted_s)

    assert act.queue_s + act.execution_s + act.overhead_s == act.total_s
    assert act.total_s == pytest.approx(lasted_s, abs=1e-3)


def measured(answer: AnswerAction, now: float) -> Act:
    return msgspec.convert(msgspec.json.decode(compose(SUBMITTED, 0, answer, None, 100.0, now))["act"], Act)


def test_a_clock_that_went_backwards_makes_no_negative_time() -> None:
    body = compose(SUBMITTED, 0, AnswerAction("a", "cancelled", "", ()), None, 100.0, 99.0)

    assert msgspec.json.decode(body)["act"]["total_s"] == 0.0


def test_every_stage_is_reported_in_order() -> None:
    assert composed("ok").stages == reports(ACTS)
    assert [(one.name, one.node, one.attempts, one.units) for one in reports(ACTS)] == [
        ("compile", "n", 1, 2),
        ("run", "m", 2, 1),
    ]


def test_usage_is_reported_by_stage_and_in_total() -> None:
    answer = composed("ok")

    assert [stage.usage for stage in answer.stages] == [{"cpu_s": 2.0, "tokens": 10.0}, {"cpu_s": 0.75, "money": 0.5}]
    assert answer.usage == {"cpu_s": 2.75, "tokens": 10.0, "money": 0.5}
    assert answer.cpu_s == 0.5, "of the last verdict alone, as before"


def test_usage_of_a_stage_without_a_verdict_is_in_the_total() -> None:
    for acts, total in (((), 4.0), (ACTS[:1], 6.0)):
        answer = AnswerAction("a", "sandbox-lost", "", acts, usage={"cpu_s": 4.0})
        assert msgspec.json.decode(compose(SUBMITTED, 0, answer, None, 1.0, 2.0))["usage"]["cpu_s"] == total


def test_nothing_used_is_not_shown() -> None:
    body = msgspec.json.decode(compose(SUBMITTED, 0, AnswerAction("a", "cancelled", "", ()), None, 1.0, 2.0))

    assert "usage" not in body


def test_outside_a_batch_no_batch_fields_are_reported() -> None:
    plain = ActionSubmitted(action="a", tenant="ada", stages=(), budget_s=60.0)

    body = msgspec.json.decode(compose(plain, -1, AnswerAction("a", "ok", "", ()), OK, 1.0, 2.0))

    assert body.keys().isdisjoint({"batch", "task", "request_id", "index"})
