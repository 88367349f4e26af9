"""Replies to callers whose deadline came during a restore."""

from __future__ import annotations

import msgspec
import pytest

from services.proxy.http.replies import problem_reply
from services.proxy.http.restores import reply_of
from shared.api.requests import Answer
from shared.runtime.errors import NotResident

LATE = Answer(id="a", state="finished", ended="expired", mask=True, reason="it was late", retry_in_s=6.2)


def test_an_answer_after_a_restore_that_took_too_long_is_a_503() -> None:
    with pytest.raises(NotResident) as raised:
        reply_of(msgspec.json.encode(LATE))
    reply = problem_reply(raised.value)
    assert (reply.status, dict(reply.headers)) == (503, {b"retry-after": b"7"})
    problem = msgspec.json.decode(reply.body)
    assert problem["retry_after_s"] == 6.2
    assert msgspec.convert(problem["answer"], Answer) == LATE
    assert "another request_id" in problem["detail"]


@pytest.mark.parametrize("seconds", [0.01, 0.4, 1.0])
def test_a_caller_waits_for_a_second_at_least(seconds: float) -> None:
    assert NotResident("late", seconds).headers() == {"retry-after": "1"}


@pytest.mark.parametrize("output", [{}, {"retry_in_s": 4.0}, {"text": '"retry_in_s": 4'}], ids=repr)
def test_any_other_answer_is_a_200_whatever_its_output(output: dict[str, object]) -> None:
    answer = Answer(id="a", state="finished", ended="ok", score=1.0, output=msgspec.Raw(msgspec.json.encode(output)))
    body = msgspec.json.encode(answer)
    reply = reply_of(body)
    assert (reply.status, reply.body) == (200, body)
