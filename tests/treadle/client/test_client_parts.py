"""The client's pure parts: problems, patience, chunks, lines."""

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
from treadle.client.bulk import chunks, is_transient, shifted
from treadle.client.errors import (
    BY_SLUG,
    BadRequest,
    Conflict,
    Overloaded,
    TreadleError,
    Unavailable,
    Unexpected,
    error_of,
)
from treadle.client.lines import LineReader
from treadle.client.patience import Patience, Tries, repeating

QUICK = Patience(total_s=0.2, first_pause_s=0.001, longest_pause_s=0.002)


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
def test_an_error_of_the_mesh_comes_back_as_itself(error: served.TreadleError) -> None:
    rebuilt = error_of(error.status, json.dumps(error.problem()).encode(), "http://p/x")
    assert type(rebuilt) is BY_SLUG[error.slug]
    assert (str(rebuilt), rebuilt.problem) == (str(error), error.problem())


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (502, b"<html>Bad Gateway", Unavailable, "http://p/x answered 502"),
        (503, b'{"type":"x/not-ready","status":503,"detail":"no leader yet"}', Unavailable, "no leader yet"),
        (404, b"<html>nginx", Unexpected, "is it the proxy's address? <html>nginx"),
        (404, b'{"detail":"Not Found"}', Unexpected, "not as Treadle does"),
        (405, b'{"type":"about:blank","status":405,"detail":"use PUT"}', Unexpected, "use PUT"),
        (
            422,
            b'{"type":"https://treadle.example/problems/bad-request","status":422,"detail":"odd"}',
            BadRequest,
            "odd",
        ),
    ],
)
def test_what_is_no_error_of_ours_says_what_came(status: int, body: bytes, kind: type[TreadleError], said: str) -> None:
    error = error_of(status, body, "http://p/x")
    assert type(error) is kind
    assert said in str(error)


def test_a_gateway_may_say_when_to_come_back() -> None:
    error = error_of(503, b"", "http://p/x", retry_after="9")
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == 9


@given(st.integers(1, 10_000), st.integers())
def test_pauses_grow_to_a_bound(failures: int, seed: int) -> None:
    patience = Patience(first_pause_s=0.1, longest_pause_s=3)
    pause_s = patience.pause_s(failures, random.Random(seed))
    ceiling = min(3, 0.1 * 2 ** min(failures - 1, 100))
    assert ceiling / 2 <= pause_s <= ceiling


async def test_a_call_is_repeated_until_it_succeeds() -> None:
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

    assert await repeating(attempt, Patience(60, 0.001, 0.002), "calling", random.Random(0)) == "done"
    assert errors == []


async def test_what_repeating_does_not_change_is_not_repeated() -> None:
    calls = []

    async def attempt() -> None:
        calls.append(1)
        raise Conflict("ended")

    with pytest.raises(Conflict):
        await repeating(attempt, QUICK, "calling", random.Random(0))
    assert len(calls) == 1


async def test_patience_ends_with_what_was_tried_and_why() -> None:
    async def attempt() -> None:
        raise TimeoutError

    with pytest.raises(Unavailable, match=r"calling: no answer for .* s \(TimeoutError\)"):
        await repeating(attempt, QUICK, "calling", random.Random(0))


class Hours:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_a_success_renews_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours()
    monkeypatch.setattr(
        "treadle.client.patience.asyncio", SimpleNamespace(get_running_loop=lambda: hours, sleep=hours.sleep)
    )
    tries = Tries(Patience(total_s=10, first_pause_s=4, longest_pause_s=4), "reading", random.Random(0))
    for _ in range(20):
        await tries.failed(TimeoutError())
        tries.succeeded()
    assert hours.now > 10
    left = hours.now
    for _ in range(2):
        await tries.failed(TimeoutError())
    hours.now = left + 9
    with pytest.raises(Unavailable, match=r"reading: no answer for 9\.0 s"):
        await tries.failed(TimeoutError())


async def test_a_full_mesh_says_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours()
    monkeypatch.setattr(
        "treadle.client.patience.asyncio", SimpleNamespace(get_running_loop=lambda: hours, sleep=hours.sleep)
    )
    await Tries(Patience(), "submitting", random.Random(0)).failed(Overloaded("full", {"retry_after_s": 1.5}))
    assert hours.now == 1.5


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30)), st.integers(1, 5), st.integers(1, 60))
def test_chunks_hold_every_line_once_in_order_and_within_bounds(
    lines: list[bytes], most_lines: int, most_bytes: int
) -> None:
    parts = list(chunks(lines, most_lines=most_lines, most_bytes=most_bytes))
    assert [line for part in parts for line in lines[part]] == lines
    for part in parts:
        size = sum(len(line) + 1 for line in lines[part])
        assert 1 <= len(lines[part]) <= most_lines
        assert size <= most_bytes or len(lines[part]) == 1
    for part, following in pairwise(parts):  # no chunk is smaller than it must be
        more = [*lines[part], lines[following][0]]
        assert len(more) > most_lines or sum(len(line) + 1 for line in more) > most_bytes


def test_a_rejection_is_told_by_its_place_in_the_whole() -> None:
    full = Rejection(line=1, problem=served.Overloaded(what="full").problem())
    bad = Rejection(line=2, problem=served.BadRequest(what="odd").problem())
    assert [is_transient(full), is_transient(bad)] == [True, False]
    moved = shifted(BulkReceipt(accepted=0, repeated=0, rejected=[full, bad]), [4, 9])
    assert [each.line for each in moved] == [5, 10]


@settings(deadline=None)
@given(st.integers(0, 6), st.data())
def test_results_are_whole_lines_however_the_bytes_come(count: int, data: st.DataObject) -> None:
    results = [answer(str(number), output={"verdict": "passed"}) for number in range(count)]
    stream = b"".join(json.dumps(as_json(result)).encode() + b"\n" for result in results)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    reader, got = LineReader(), []
    for start, end in pairwise([0, *cuts, len(stream)]):
        got += reader.feed(stream[start:end])
        assert [each.request_id for each in got] == [str(number) for number in range(stream[:end].count(b"\n"))]
    assert len(got) == count


def as_json(result: Result) -> dict[str, object]:
    return {"cursor": result.cursor, "id": result.id, "state": result.state, "request_id": result.request_id}
