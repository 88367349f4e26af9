"""Which calls are repeated, when, and which end as `upstream-failed`."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.quota_manager.kinds import HttpCall, UsedAmount
from services.quota_manager.outcomes import CallEnd, Safety, delay_before, unaccepted
from services.quota_manager.requests import http_call, is_repeatable
from shared.policy.model.formulation import FailedCalls
from shared.policy.model.results import AttemptResult, Feedback, UpstreamAnswer
from tests.services.quota_manager.grants import grant

URL = "https://api.example/"


def ended(answer: UpstreamAnswer, safety: Safety, *, elapsed_s: float = 1.0, params: dict[str, Any] | None = None,
          not_before_s: float = 0.0, final: bool = False, **granted: Any) -> AttemptResult:  # fmt: skip
    call = HttpCall(url=URL, **(params or {}))
    end = CallEnd(answer, "why", safety, "detail", not_before_s, final)
    return unaccepted(end, grant({}, **granted), call, is_repeatable(call), elapsed_s, Random(1))


POST = {"method": "POST"}

TABLE: list[tuple[UpstreamAnswer, Safety, dict[str, Any], int, str]] = [
    # nothing was sent: safe for every method
    ("failed", "unsent", POST, 1, "postponed"),
    ("failed", "unsent", {"repeatable": False}, 2, "postponed"),
    ("failed", "unsent", POST, 3, "upstream-failed"),
    ("failed", "unsent", {"attempts": 1}, 1, "upstream-failed"),
    # the upstream has declined: safe for every method; it is waited for as long as the budget lasts
    ("pushed-back", "declined", POST, 1, "postponed"),
    ("pushed-back", "declined", POST, 50, "postponed"),
    ("exhausted", "declined", POST, 50, "postponed"),
    ("failed", "declined", POST, 2, "postponed"),
    ("failed", "declined", POST, 3, "upstream-failed"),
    # it may have executed the call
    ("failed", "sent", {"method": "GET"}, 1, "postponed"),
    ("failed", "sent", POST, 1, "upstream-failed"),
    ("failed", "sent", {**POST, "repeatable": True}, 2, "postponed"),
    ("failed", "sent", {"method": "GET", "repeatable": False}, 1, "upstream-failed"),
    ("failed", "sent", {"method": "GET"}, 3, "upstream-failed"),
    ("ok", "sent", {"method": "GET"}, 1, "postponed"),
    # it has answered nothing: once more
    ("failed", "silent", POST, 1, "postponed"),
    ("failed", "silent", POST, 2, "upstream-failed"),
    ("failed", "silent", {"method": "GET"}, 1, "postponed"),
    ("failed", "silent", {"method": "GET", "attempts": 9}, 2, "upstream-failed"),
    ("failed", "silent", {**POST, "repeatable": False}, 1, "upstream-failed"),
]


@pytest.mark.parametrize(("answer", "safety", "params", "attempt", "status"), TABLE)
def test_only_safe_failures_are_repeated(
    answer: UpstreamAnswer, safety: Safety, params: dict[str, Any], attempt: int, status: str
) -> None:
    result = ended(answer, safety, params=params, attempt=attempt)

    assert (result.status, result.score, result.passed) == (status, None, None)
    assert result.feedback == (Feedback("search", answer, 0.0, "why"),)


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize(("safety", "free"), [("unsent", True), ("declined", True), ("silent", False), ("sent", False)])
def test_a_call_that_was_not_executed_reports_that_nothing_was_used(safety: Safety, free: bool, attempt: int) -> None:
    params = {"used": {"judge-tokens": UsedAmount(pointer="/usage")}}
    result = ended("failed", safety, params=params, attempt=attempt)
    assert (result.unexecuted, result.quotas_used) == (free, {"judge-tokens": 0.0} if free else {})


@pytest.mark.parametrize(("answer", "safety", "before", "status", "after"), [
    ("pushed-back", "declined", (0, 0), "postponed", (0, 0)),
    ("exhausted", "declined", (2, 1), "postponed", (2, 1)),
    ("failed", "sent", (0, 0), "postponed", (1, 0)),
    ("failed", "unsent", (1, 1), "postponed", (2, 1)),
    ("failed", "sent", (2, 0), "upstream-failed", None),
    ("failed", "silent", (0, 0), "postponed", (1, 1)),
    ("failed", "silent", (1, 0), "postponed", (2, 1)),
    ("failed", "silent", (1, 1), "upstream-failed", None),
    ("failed", "silent", (2, 0), "upstream-failed", None),
])  # fmt: skip
def test_failed_calls_are_counted_apart_from_other_attempts(
    answer: UpstreamAnswer, safety: Safety, before: tuple[int, int], status: str, after: tuple[int, int] | None
) -> None:
    result = ended(answer, safety, attempt=50, failed_calls=FailedCalls(*before))
    assert (result.status, result.failed_calls) == (status, after)


def test_a_call_that_may_not_be_repeated_is_so_once_if_it_was_not_answered() -> None:
    first, second = (
        ended("failed", "silent", params=POST, attempt=9, failed_calls=FailedCalls(silent, silent)) for silent in (0, 1)
    )
    assert (first.status, second.status) == ("postponed", "upstream-failed")


@pytest.mark.parametrize(("left_s", "status"), [(0.9, "upstream-failed"), (1.1, "postponed")])
def test_the_least_delay_of_a_repeat_fits_into_the_budget(left_s: float, status: str) -> None:
    assert ended("failed", "silent", budget_s=2.0, elapsed_s=2.0 - left_s).status == status


@pytest.mark.parametrize(("attempt", "failed", "first_byte_s"), [
    (1, None, 4.0), (5, FailedCalls(3, 0), 4.0), (5, FailedCalls(1, 1), None), (2, None, None),
])  # fmt: skip
def test_a_call_leaves_half_of_the_budget_until_one_was_not_answered(
    attempt: int, failed: FailedCalls | None, first_byte_s: float | None
) -> None:
    granted = grant({}, attempt=attempt, failed_calls=failed, budget_s=8.0)
    assert http_call(HttpCall(url=URL), granted).first_byte_s == first_byte_s


def test_a_failure_that_would_repeat_itself_is_final() -> None:
    assert ended("ok", "sent", final=True).reason == "detail; it is not repeated"


def test_a_repeat_fits_into_the_budget() -> None:
    assert ended("pushed-back", "declined", not_before_s=50, budget_s=60, elapsed_s=1).status == "postponed"
    late = ended("pushed-back", "declined", not_before_s=60, budget_s=60, elapsed_s=1)
    assert (late.status, "59 s are left of its budget" in late.reason) == ("upstream-failed", True)


@pytest.mark.parametrize("budget_s", [1.5, 600.0, 3600.0])
@pytest.mark.parametrize("attempt", [1, 20])
def test_work_without_credit_is_held_by_its_quota_and_asks_soon_after_a_top_up(attempt: int, budget_s: float) -> None:
    result = ended("exhausted", "declined", not_before_s=900.0, attempt=attempt, budget_s=budget_s)
    assert result.status == "postponed"
    assert 1.0 <= result.retry_in_s <= 30.0
    assert result.feedback[0].not_before_s == 900.0


def test_no_quota_holds_a_call_that_takes_none() -> None:
    assert ended("exhausted", "declined", not_before_s=900.0, quotas={}).status == "upstream-failed"
    assert ended("exhausted", "declined", not_before_s=900.0, quotas={}, budget_s=3600.0).retry_in_s >= 900.0


def test_feedback_is_for_the_quota_of_the_upstream() -> None:
    two = {"judge": 1.0, "tokens": 800.0}
    for params, quotas, expected in (
        ({}, two, ["judge"]), ({"upstream": "tokens"}, two, ["tokens"]), ({}, {}, []),
    ):  # fmt: skip
        result = ended("failed", "unsent", params=params, quotas=quotas)
        assert [each.quota for each in result.feedback] == expected


@given(st.integers(1, 10_000), st.sampled_from(["failed", "pushed-back", "exhausted"]),
       st.floats(0, 3600), st.integers())  # fmt: skip
def test_a_delay_is_bounded_and_not_before_the_upstreams_time(
    attempt: int, answer: UpstreamAnswer, not_before_s: float, seed: int
) -> None:
    delay_s = delay_before(attempt, CallEnd(answer, "", "declined", "", not_before_s), Random(seed))

    assert not_before_s <= delay_s <= max(1.1 * not_before_s, 30.0 if answer == "exhausted" else 60.0)


def test_delays_grow_and_are_spread() -> None:
    end = CallEnd("failed", "", "unsent", "")
    means = [sum(delay_before(attempt, end, Random(seed)) for seed in range(500)) / 500 for attempt in (1, 2, 3, 7)]
    assert means == pytest.approx([0.5, 1.0, 2.0, 30.0], rel=0.1)
