"""The simulated service: its limits against a brute-force count, and each kind of answer by hand."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.lab.replay.search.assumptions import Provider
from treadle.lab.replay.search.provider import ProviderAnswer, SimulatedProvider

PLAIN = Provider(
    per_s=2.0, burst_s=1.5, concurrency=4, latency_s=1.0, load_slope=0.0, errors=0.0, overload=1e9, slow_every_s=0.0
)


def service(rules: Provider = PLAIN, seed: int = 1) -> SimulatedProvider:
    return SimulatedProvider(rules, Random(seed))


def admits_too_much(admitted_s: list[float], burst: float, per_s: float) -> bool:
    """Each window between two admissions, one by one."""
    return any(
        later - first + 1 > burst + per_s * (admitted_s[later] - admitted_s[first]) + 1e-6
        for first in range(len(admitted_s))
        for later in range(first, len(admitted_s))
    )


@given(
    st.lists(st.tuples(st.floats(0, 0.7), st.floats(0.1, 5.0)), max_size=60),
    st.sampled_from([0.5, 2.0, 7.0]),
    st.integers(1, 6),
    st.sampled_from([0.0, 4.0]),
)
def test_no_window_admits_more_than_burst_and_refill_and_no_moment_more_than_the_concurrency(
    calls: list[tuple[float, float]], per_s: float, concurrency: int, slow_every_s: float
) -> None:
    rules = replace(PLAIN, per_s=per_s, concurrency=concurrency, slow_every_s=slow_every_s, slow_for_s=2.0)
    provider, now, ends = service(rules), 0.0, list[float]()
    for gap_s, work in calls:
        now += gap_s
        while ends and ends[0] <= now:
            heapq.heappop(ends)
            provider.leave()
        answer = provider.call(now, work)
        if answer.admitted:
            heapq.heappush(ends, now + answer.after_s)
        assert len(ends) == provider.running <= concurrency
    assert sum(provider.counts.values()) == len(calls)
    assert not admits_too_much(provider.admitted_s, rules.burst, per_s)


def test_a_call_without_a_token_is_refused_with_whole_seconds() -> None:
    provider = service(replace(PLAIN, per_s=0.4, burst_s=5.0))
    assert [provider.call(0.0, 1.0).outcome for _ in range(2)] == ["ok", "ok"]
    assert provider.call(0.0, 1.0) == ProviderAnswer("refused", 0.1, 3.0)
    assert provider.call(2.49, 1.0).outcome == "refused", "a refused call has taken no token"
    assert provider.call(2.5, 1.0).outcome == "ok"


def test_a_call_beyond_the_concurrency_is_refused_until_one_has_left() -> None:
    provider = service(replace(PLAIN, per_s=100.0, concurrency=2))
    assert [provider.call(0.0, 1.0).outcome for _ in range(3)] == ["ok", "ok", "refused"]
    provider.leave()
    assert provider.call(0.0, 1.0).outcome == "ok"
    assert provider.most_running == 2


def test_latency_grows_with_the_square_of_the_load() -> None:
    provider = service(replace(PLAIN, per_s=100.0, load_slope=1.0))
    assert [provider.call(0.0, 2.0).after_s for _ in range(4)] == pytest.approx([2.0, 2.125, 2.5, 3.125])


def test_of_calls_beyond_the_overload_the_rest_hangs() -> None:
    provider = service(replace(PLAIN, per_s=10.0, burst_s=1.0, overload=3.0, concurrency=10_000))
    answers = [provider.call(number / 200.0, 1.0) for number in range(2000)]
    hung = [answer for answer in answers[200:] if answer.outcome == "hung"]
    assert len(hung) / 1800 == pytest.approx(1 - 30 / 200, abs=0.03)
    assert {answer.after_s for answer in hung} == {math.inf}
    assert not any(answer.admitted for answer in hung)


def test_a_slow_down_halves_the_limits_and_doubles_the_latency() -> None:
    provider = service(replace(PLAIN, per_s=10.0, slow_every_s=50.0, slow_for_s=20.0))
    begin_s = next(at_s for at_s in (number / 10 for number in range(100_000)) if provider.slowed(at_s) == 2.0)
    answers = [provider.call(begin_s + 10.0, 1.0) for _ in range(3)]
    assert [answer.outcome for answer in answers] == ["ok", "ok", "refused"]
    assert answers[0].after_s == 2.0
    assert provider.slowed(begin_s + 20.2) == 1.0


def test_some_admitted_calls_fail() -> None:
    provider = service(replace(PLAIN, per_s=1e6, concurrency=10_000, errors=0.25))
    for number in range(2000):
        provider.call(number, 1.0)
    assert provider.counts["failed"] / 2000 == pytest.approx(0.25, abs=0.03)
    assert provider.running == 2000, "a failed call has taken a slot"
