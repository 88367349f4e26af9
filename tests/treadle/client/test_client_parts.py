"""The client's pure parts: problems, retries, chunks, results."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from types import SimpleNamespace

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.runtime import errors as served
from tests.treadle.grading.answers import answer
from treadle.client.answers import BulkReceipt, Rejection, Result
from treadle.client.bulk import check_unique, chunks, is_transient, renumbered
from treadle.client.errors import (
    BY_SLUG,
    BadRequest,
    Conflict,
    InvalidUrl,
    Overloaded,
    TreadleError,
    Unavailable,
    Unexpected,
    error_of,
)
from treadle.client.requests import RewardRequest
from treadle.client.results import ResultDecoder
from treadle.client.retry import RetryPolicy, RetryState, retry
from treadle.client.transport import checked_url

QUICK = RetryPolicy(give_up_after_s=0.2, first_backoff_s=0.001, max_backoff_s=0.002)


@pytest.mark.parametrize(
    "error",
    [
        served.BadRequest(what="no", line=3),
        served.NotFound(kind="task", name="t", hint="declare it"),
        served.Conflict(what="ended"),
        served.Overloaded(what="full", retry_after_s=7.0),
        served.Unavailable(what="away"),
    ],
    ids=lambda error: error.slug,
)
def test_an_error_of_the_mesh_is_raised_with_its_type(error: served.TreadleError) -> None:
    rebuilt = error_of(error.status, json.dumps(error.problem()).encode(), "http://p/x")
    assert type(rebuilt) is BY_SLUG[error.slug]
    assert (str(rebuilt), rebuilt.problem) == (str(error), error.problem())


@pytest.mark.parametrize(
    ("status", "body", "kind", "shown"),
    [
        (502, b"<html>Bad Gateway", Unavailable, "http://p/x answered 502"),
        (503, b'{"type":"x/not-ready","status":503,"detail":"no leader yet"}', Unavailable, "no leader yet"),
        (404, b"<html>nginx", Unexpected, "is it the proxy's address? <html>nginx"),
        (404, b'{"detail":"Not Found"}', Unexpected, "not as Treadle does"),
        (404, b'{"type":"\xff","status":404}', Unexpected, "not as Treadle does"),
        (405, b'{"type":"about:blank","status":405,"detail":"use PUT"}', Unexpected, "use PUT"),
        (
            422,
            b'{"type":"https://treadle.example/problems/bad-request","status":422,"detail":"odd"}',
            BadRequest,
            "odd",
        ),
    ],
)
def test_an_error_of_another_server_shows_its_reply(
    status: int, body: bytes, kind: type[TreadleError], shown: str
) -> None:
    error = error_of(status, body, "http://p/x")
    assert type(error) is kind
    assert shown in str(error)


def test_retry_after_of_a_gateway_is_read() -> None:
    error = error_of(503, b"", "http://p/x", retry_after="9")
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == 9


@given(st.integers(1, 10_000), st.integers())
def test_backoff_grows_to_a_bound(failures: int, seed: int) -> None:
    policy = RetryPolicy(first_backoff_s=0.1, max_backoff_s=3)
    backoff_s = policy.backoff_s(failures, random.Random(seed))
    ceiling = min(3, 0.1 * 2 ** min(failures - 1, 100))
    assert ceiling / 2 <= backoff_s <= ceiling


async def test_a_call_is_retried_until_it_succeeds() -> None:
    errors = [
        aiohttp.ServerDisconnectedError(),
        TimeoutError(),
        Unavailable("away", {"retry_after_s": 0.0}),
        Overloaded("full", {"retry_after_s": 0.0}),
    ]

    async def attempt() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert await retry(attempt, RetryPolicy(60, 0.001, 0.002), "calling", random.Random(0)) == "done"
    assert errors == []


async def test_an_error_that_a_retry_does_not_change_is_not_retried() -> None:
    calls = []

    async def attempt() -> None:
        calls.append(1)
        raise Conflict("ended")

    with pytest.raises(Conflict):
        await retry(attempt, QUICK, "calling", random.Random(0))
    assert len(calls) == 1


async def test_the_last_error_names_the_call_and_the_reason() -> None:
    async def attempt() -> None:
        raise TimeoutError

    with pytest.raises(Unavailable, match=r"calling: no answer for .* s \(TimeoutError\)"):
        await retry(attempt, QUICK, "calling", random.Random(0))


class PauseClock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_a_success_resets_the_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = PauseClock()
    monkeypatch.setattr(
        "treadle.client.retry.asyncio", SimpleNamespace(get_running_loop=lambda: hours, sleep=hours.sleep)
    )
    retries = RetryState(
        RetryPolicy(give_up_after_s=10, first_backoff_s=4, max_backoff_s=4), "reading", random.Random(0)
    )
    for _ in range(20):
        await retries.backoff(TimeoutError())
        retries.reset()
    assert hours.now > 10
    left = hours.now
    for _ in range(2):
        await retries.backoff(TimeoutError())
    hours.now = left + 9
    with pytest.raises(Unavailable, match=r"reading: no answer for 9\.0 s"):
        await retries.backoff(TimeoutError())


async def test_retry_after_of_a_full_mesh_is_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = PauseClock()
    monkeypatch.setattr(
        "treadle.client.retry.asyncio", SimpleNamespace(get_running_loop=lambda: hours, sleep=hours.sleep)
    )
    await RetryState(RetryPolicy(), "submitting", random.Random(0)).backoff(Overloaded("full", {"retry_after_s": 1.5}))
    assert hours.now == 1.5


async def test_each_failure_doubles_the_next_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = PauseClock()
    monkeypatch.setattr(
        "treadle.client.retry.asyncio", SimpleNamespace(get_running_loop=lambda: hours, sleep=hours.sleep)
    )
    retries = RetryState(RetryPolicy(1000, first_backoff_s=1, max_backoff_s=100), "reading", random.Random(0))
    for ceiling in (1, 2, 4, 8, 16):
        before = hours.now
        await retries.backoff(TimeoutError())
        assert ceiling / 2 <= hours.now - before <= ceiling


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30)), st.integers(1, 5), st.integers(1, 60))
def test_chunks_hold_every_line_once_in_order_and_within_bounds(
    lines: list[bytes], max_lines: int, max_bytes: int
) -> None:
    parts = list(chunks(lines, max_lines=max_lines, max_bytes=max_bytes))
    assert [line for part in parts for line in lines[part]] == lines
    for part in parts:
        size = sum(len(line) + 1 for line in lines[part])
        assert 1 <= len(lines[part]) <= max_lines
        assert size <= max_bytes or len(lines[part]) == 1
    for part, following in pairwise(parts):  # no chunk is smaller than it must be
        more = [*lines[part], lines[following][0]]
        assert len(more) > max_lines or sum(len(line) + 1 for line in more) > max_bytes


def test_a_rejection_has_its_place_in_the_whole() -> None:
    full = Rejection(line=1, problem=served.Overloaded(what="full").problem())
    bad = Rejection(line=2, problem=served.BadRequest(what="odd").problem())
    assert [is_transient(full), is_transient(bad)] == [True, False]
    moved = renumbered(BulkReceipt(accepted=0, repeated=0, rejected=[full, bad]), [4, 9])
    assert [each.line for each in moved] == [5, 10]
    with pytest.raises(Unexpected, match="not among the 1 sent"):
        renumbered(BulkReceipt(accepted=0, repeated=0, rejected=[full, bad]), [4])


@settings(deadline=None)
@given(st.integers(0, 6), st.data())
def test_results_are_whole_lines_however_the_bytes_come(count: int, data: st.DataObject) -> None:
    results = [answer(str(number), output={"verdict": "passed"}) for number in range(count)]
    stream = b"".join(json.dumps(as_json(result)).encode() + b"\n" for result in results)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    decoder, got = ResultDecoder(), []
    for start, end in pairwise([0, *cuts, len(stream)]):
        got += decoder.feed(stream[start:end])
        assert [each.request_id for each in got] == [str(number) for number in range(stream[:end].count(b"\n"))]
    assert len(got) == count


def as_json(result: Result) -> dict[str, object]:
    return {"cursor": result.cursor, "id": result.id, "state": result.state, "request_id": result.request_id}


@pytest.mark.parametrize("line", [b"<html>\n", b'{"cursor": "\xff"}\n', b'{"output": ' + b"[" * 100_000 + b"\n"])
def test_a_line_that_is_no_result_is_unexpected(line: bytes) -> None:
    with pytest.raises(Unexpected, match="a line that is no result"):
        ResultDecoder().feed(line)


def test_two_requests_with_the_same_id_are_rejected() -> None:
    named = [RewardRequest(request_id=name) for name in ("a", "b", "a")]
    check_unique(named[:2])
    with pytest.raises(BadRequest, match=r"requests\[0\] and requests\[2\] have the same request_id 'a'"):
        check_unique(named)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8700",
        "http://",
        "ftp://mesh",
        "http://mesh:99999",
        "http://mesh:port",
        "http://[::1",
        "http://mesh:0",
    ],
)
def test_an_address_that_is_none_is_rejected_with_an_example(url: str) -> None:
    with pytest.raises(InvalidUrl, match=r"is no address: write it as http://127\.0\.0\.1:8700"):
        checked_url(url)


@pytest.mark.parametrize("url", ["http://mesh/?tenant=a", "http://mesh/#top"])
def test_an_address_has_no_query(url: str) -> None:
    with pytest.raises(InvalidUrl, match="has a query or a fragment"):
        checked_url(url)


def test_an_address_loses_its_final_slash() -> None:
    assert checked_url("https://mesh:8700/") == "https://mesh:8700"
    assert checked_url("http://mesh/treadle/") == "http://mesh/treadle"


@pytest.mark.parametrize("seconds", ["soon", None, [1]])
def test_a_retry_after_that_is_no_number_is_ignored(seconds: object) -> None:
    assert Overloaded("full", {"retry_after_s": seconds}).retry_after_s == 0.0
