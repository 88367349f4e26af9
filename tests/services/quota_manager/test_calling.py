"""Attempts against a client that answers as the test says: verdicts, repeats, refusals, feedback."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from services.quota_manager.calling import Calling, beginning
from services.quota_manager.kinds import MOST_BYTES
from services.quota_manager.metrics import CallMetrics
from services.quota_manager.outgoing.calls import OutgoingAnswer, OutgoingCall, SecretName
from services.quota_manager.outgoing.errors import (
    BrokenAnswer,
    ForbiddenAddress,
    InvalidCall,
    NoFirstByte,
    NoMemory,
    NotConnected,
    OutgoingError,
)
from shared.policy.model.results import AttemptResult, Feedback
from shared.runtime.byte_budget import ByteBudget, ByteShare
from shared.runtime.clock import SYSTEM_CLOCK
from tests.services.quota_manager.grants import grant

URL = "https://api.example/v1"
DOCUMENTS = b'{"result": [[{"contents": "a"}]]}'


class Upstream:
    """Answers every call alike, and keeps what it was sent."""

    def __init__(self, answer: OutgoingError | tuple[int, bytes] = (200, b"{}"), *headers: tuple[str, str]) -> None:
        self.answer, self.headers = answer, headers
        self.calls: list[OutgoingCall] = []

    async def call(self, call: OutgoingCall, memory: ByteShare | None = None) -> OutgoingAnswer:
        assert memory is not None
        self.calls.append(call)
        if isinstance(self.answer, OutgoingError):
            raise self.answer
        return OutgoingAnswer(self.answer[0], self.headers, self.answer[1], call.url, 0.1, 0.1)


async def attempt(
    upstream: Upstream, params: dict[str, Any] | bytes, kind: str = "http", **granted: Any
) -> AttemptResult:
    calling = Calling(upstream, SYSTEM_CLOCK, Random(1), 1 << 20, CallMetrics(), ByteBudget(MOST_BYTES, MOST_BYTES))
    return await calling.attempt(grant(params, kind, **granted))


async def test_a_call_is_sent_as_it_was_asked_for() -> None:
    upstream = Upstream()
    params = {
        "method": "POST", "url": URL + "/{user}", "values": {"user": "a/b", "text": '"hi"'}, "query": {"q": "{text}"},
        "headers": {"X-One": "1", "Authorization": {"secret": "key"}}, "json": {"prompt": "say {text}"}, "timeout_s": 7,
        "most_bytes": 99,
    }  # fmt: skip

    assert (await attempt(upstream, params)).status == "ok"

    (call,) = upstream.calls
    assert (call.method, call.url, dict(call.query)) == ("POST", URL + "/a%2Fb", {"q": '"hi"'})
    assert dict(call.headers) == {"X-One": "1", "Authorization": SecretName("key")}
    assert msgspec.json.decode(call.body or b"") == {"prompt": 'say "hi"'}
    assert (call.content_type, call.timeout_s, call.most_bytes, call.tenant) == ("application/json", 7, 99, "ada")


async def test_an_accepted_answer_is_a_verdict_with_feedback() -> None:
    body = b'{"choices": [{"text": "I give 8 of 10"}], "usage": {"total": 812, "cost": 2e9}}'
    params = {
        "url": URL, "used": {"tokens": {"pointer": "/usage/total"}, "judge": {"pointer": "/usage/none"},
                                "money": {"pointer": "/usage/cost"}},
        "extract": {"pointer": "/choices/0/text", "pattern": "give ([0-9]+)", "scale": 0.1, "pass_at": 0.7},
    }  # fmt: skip

    result = await attempt(Upstream((200, body)), params, quotas={"judge": 1.0, "tokens": 500.0, "money": 1.0})

    assert (result.status, result.score, result.passed, result.evidence) == ("ok", 0.8, True, "separate")
    assert result.quotas_used == {"tokens": 812.0}
    assert result.feedback == (Feedback("judge", "ok"),)
    output = msgspec.json.decode(result.output)
    assert (output["json"]["usage"], output["unsettled"]) == ({"total": 812, "cost": 2e9}, ["judge", "money"])


async def test_an_amount_of_a_quota_that_the_action_does_not_take_is_refused() -> None:
    params = {"url": URL, "used": {"token": {"pointer": "/usage/total"}}}
    upstream = Upstream()

    result = await attempt(upstream, params, quotas={"tokens": 500.0})

    assert (result.status, upstream.calls) == ("refused", [])
    assert result.reason == "used: the action takes nothing of the quota 'token'; name it in `quotas`"


@pytest.mark.parametrize("status", [100, 199, 300, 301, 304, 399, 400, 401, 403, 404, 418, 422, 500, 501, 599])
async def test_no_other_status_forms_a_score(status: int) -> None:
    params = {"url": URL, "extract": {"pointer": "/score"}, "attempts": 1}

    result = await attempt(Upstream((status, b'{"score": 1}')), params)

    assert (result.status, result.score, result.passed) == ("upstream-failed", None, None)
    assert str(status) in result.reason


async def test_the_callers_fault_is_shown_and_not_repeated() -> None:
    result = await attempt(Upstream((404, b"no such\nmodel 'x'")), {"url": URL})

    assert result.reason == "the upstream answered 404: no such model 'x'; it is not repeated"
    assert result.feedback == (Feedback("search", "ok"),), "the upstream works, and other tenants do not see the body"


async def test_a_status_can_be_accepted() -> None:
    params = {"url": URL, "accept_status": [404, "500-503"]}
    assert (await attempt(Upstream((404, b"")), params)).status == "ok"
    assert (await attempt(Upstream((502, b"")), params)).status == "ok"
    assert (await attempt(Upstream((200, b"")), params)).status == "upstream-failed"


ENDS: list[tuple[OutgoingError | tuple[int, bytes], str, str]] = [
    (NotConnected("secret path"), "postponed", "failed"),
    (NoFirstByte("secret path"), "postponed", "failed"),
    (BrokenAnswer("secret path"), "upstream-failed", "failed"),
    (NoMemory("secret path"), "upstream-failed", "ok"),
    ((429, b"secret path"), "postponed", "pushed-back"),
    ((402, b"secret path"), "postponed", "exhausted"),
    ((400, b"your credit balance is too low: secret path"), "postponed", "exhausted"),
    ((503, b"secret path"), "upstream-failed", "failed"),
    ((500, b"secret path"), "upstream-failed", "failed"),
]


@pytest.mark.parametrize(("answer", "status", "feedback"), ENDS, ids=range(len(ENDS)))
async def test_the_end_of_a_post_and_what_the_quota_hears(
    answer: OutgoingError | tuple[int, bytes], status: str, feedback: str
) -> None:
    result = await attempt(Upstream(answer), {"url": URL, "method": "POST", "json": {}})

    assert (result.status, result.score) == (status, None)
    (told,) = result.feedback
    assert (told.quota, told.answer) == ("search", feedback)
    assert "secret" not in told.reason


async def test_a_503_with_retry_after_is_safe_to_repeat() -> None:
    upstream = Upstream((503, b""), ("retry-after", "20"))

    result = await attempt(upstream, {"url": URL, "method": "POST", "json": {}})

    assert result.status == "postponed"
    assert 20 <= result.retry_in_s <= 22
    assert result.feedback[0].not_before_s == 20


@pytest.mark.parametrize("error", [ForbiddenAddress("10.0.0.1 is private"), InvalidCall("no secret 'key'")])
async def test_what_can_never_be_called_is_refused(error: OutgoingError) -> None:
    result = await attempt(Upstream(error), {"url": URL})

    assert (result.status, result.reason, result.feedback) == ("refused", error.reason, ())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (b"no json", "params of http is not JSON"),
        ({"url": URL, "metod": "GET"}, "unknown field `metod`"),
        ({}, "missing field `url`"),
        ({"url": "https://{a}/", "values": {"a": "b"}}, "a host without places"),
        ({"url": URL, "json": 1, "text": "a", "method": "POST"}, "give one of them"),
        ({"url": URL, "json": 1}, "GET has no body"),
        ({"url": URL, "extract": {"pattern": "("}}, "pattern: "),
        ({"url": URL, "upstream": "other"}, "the action takes nothing of the quota 'other'"),
    ],
    ids=range(8),
)
async def test_invalid_parameters_are_refused_and_not_sent(params: dict[str, Any] | bytes, message: str) -> None:
    upstream = Upstream()

    result = await attempt(upstream, params)

    assert (result.status, upstream.calls) == ("refused", [])
    assert message in result.reason


async def test_an_accepted_answer_without_a_score_is_no_verdict() -> None:
    params = {"url": URL, "extract": {"pointer": "/score"}, "used": {"search": {"pointer": "/used"}}}

    first = await attempt(Upstream((200, b'{"used": 3}')), params)
    last = await attempt(Upstream((200, b'{"used": 3}')), params, attempt=3)

    assert (first.status, last.status, last.score, last.quotas_used) == (
        "postponed", "upstream-failed", None, {"search": 3.0},
    )  # fmt: skip
    assert first.feedback == (Feedback("search", "ok"),)


async def test_rules_find_pushback_in_a_200() -> None:
    rule = {"when": {"status": [200], "body": "(?i)captcha"}, "then": "pushed-back", "for_s": 40, "reason": "CAPTCHA"}

    result = await attempt(Upstream((200, b"<h1>Captcha</h1>")), {"url": URL, "rules": [rule]})

    assert (result.status, result.feedback) == ("postponed", (Feedback("search", "pushed-back", 40.0, "CAPTCHA"),))


async def test_documents_are_asked_for_in_the_form_of_the_upstream() -> None:
    upstream = Upstream((200, DOCUMENTS))
    many = {"url": URL, "queries": ["x"], "topk": 3}
    assert (await attempt(upstream, many, "search.retrieve")).status == "ok"
    assert (await attempt(upstream, {**many, "form": "query"}, "search.retrieve")).status == "ok"
    assert [msgspec.json.decode(call.body or b"") for call in upstream.calls] == [
        {"queries": ["x"], "topk": 3, "return_scores": False},
        {"query": "x", "topk": 3, "return_scores": False},
    ]
    assert [call.method for call in upstream.calls] == ["POST", "POST"]


async def test_documents_of_another_shape_are_repeated_and_then_a_failure() -> None:
    params = {"url": URL, "queries": ["x", "y"]}
    results = [
        await attempt(Upstream((200, DOCUMENTS)), params, "search.retrieve", attempt=number) for number in (1, 3)
    ]
    assert [result.status for result in results] == ["postponed", "upstream-failed"]
    assert "1 lists of documents for 2 queries" in results[1].reason
    assert results[1].feedback[0].answer == "failed"


def test_the_beginning_of_a_body_is_one_line() -> None:
    assert beginning(b"a\r\nb\x00\x1b[31m" + b"c" * 1000) == "a b [31m" + "c" * 192


async def test_a_pattern_that_looks_at_the_whole_answer_at_each_match_does_not_stop_the_service() -> None:
    """The event loop goes on meanwhile, or the node would be lost; the search ends, and its call has failed."""
    params = {"url": URL, "extract": {"pattern": "(a)(?:.*b)?"}, "attempts": 1}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    result = await attempt(Upstream((200, b"a" * 16384)), params)
    counting.cancel()

    assert turns > 100
    assert result.status == "upstream-failed", "`a` is no number, if the search has ended in time"
    assert "took too long" in result.reason or "no number" in result.reason
