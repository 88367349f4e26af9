"""Delays of repeated calls: bounds for every attempt, and both of their sources."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.resources.retries import retry_delay_s


@given(st.integers(1, 10_000), st.floats(0, 3600), st.integers())
def test_a_delay_is_never_before_the_services_time_and_never_unbounded(attempt: int, wait_s: float, seed: int) -> None:
    delay_s = retry_delay_s(attempt, wait_s, Random(seed))
    assert wait_s <= delay_s <= max(60.0, 1.1 * wait_s)


def test_backoff_doubles_from_one_second_to_a_minute_with_full_jitter() -> None:
    random = Random(1)
    for attempt, most_s in ((1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (1000, 60)):
        delays_s = [retry_delay_s(attempt, 0.0, random) for _ in range(2000)]
        assert 0.98 * most_s < max(delays_s) <= most_s
        assert min(delays_s) < 0.02 * most_s


def test_calls_that_were_refused_together_do_not_come_back_together() -> None:
    random = Random(1)
    delays_s = {retry_delay_s(1, 10.0, random) for _ in range(100)}
    assert len(delays_s) == 100
    assert max(delays_s) > 10.8


def test_a_caller_may_bound_the_backoff_and_not_the_services_time() -> None:
    assert all(retry_delay_s(9, 0.0, Random(seed), 5.0) <= 5.0 for seed in range(100))
    assert retry_delay_s(9, 40.0, Random(1), 5.0) >= 40.0
