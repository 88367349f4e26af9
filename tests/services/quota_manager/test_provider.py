"""Meanings of answers, as providers give them."""

from __future__ import annotations

import json

import pytest

from services.quota_manager.provider import read_answer
from shared.policy.model.results import UpstreamAnswer

NOW = 1_700_000_000.0

OPENAI_RATE = (
    "Rate limit reached for gpt-4 in organization org-x on tokens per min (TPM): Limit 10000, Used 9500. Please try again "
    "in 6s. You can increase your rate limit by adding a payment method to your account at "
    "https://platform.openai.com/account/billing."
)
OPENAI_QUOTA = {
    "error": {
        "message": "You exceeded your current quota, please check your plan and billing details.",
        "type": "insufficient_quota",
        "code": "insufficient_quota",
    }
}
ANTHROPIC_CREDIT = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API."},
}
GOOGLE_BILLING = {"error": {"code": 403, "message": "This API method requires billing to be enabled."}}
GEMINI_RATE = {
    "error": {
        "code": 429,
        "message": "You exceeded your current quota, please check your plan and billing details.",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}],
    }
}
ANSWERS: list[tuple[int, dict[str, str], object, UpstreamAnswer, float, bool]] = [
    (200, {}, {"result": [1]}, "ok", 0.0, False),
    (200, {"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "2s"}, {}, "ok", 2.0, False),
    (400, {}, {"error": "no such field"}, "ok", 0.0, False),
    (404, {}, {}, "ok", 0.0, False),
    (429, {}, {"error": {"message": OPENAI_RATE}}, "pushed-back", 0.0, True),
    (429, {"Retry-After": "20"}, {}, "pushed-back", 20.0, True),
    (429, {}, OPENAI_QUOTA, "exhausted", 0.0, True),
    (429, {}, GEMINI_RATE, "pushed-back", 34.5, True),
    (400, {}, ANTHROPIC_CREDIT, "exhausted", 0.0, True),
    (402, {}, {}, "exhausted", 0.0, True),
    (403, {}, GOOGLE_BILLING, "exhausted", 0.0, True),
    (403, {}, {"error": "forbidden"}, "ok", 0.0, False),
    (529, {}, {"error": {"type": "overloaded_error"}}, "pushed-back", 0.0, True),
    (503, {"Retry-After": "3"}, {}, "failed", 3.0, True),
    (500, {}, {}, "failed", 0.0, True),
    (501, {}, {}, "failed", 0.0, False),
    (408, {}, {}, "failed", 0.0, True),
]


@pytest.mark.parametrize(("status", "headers", "body", "answer", "not_before_s", "retryable"), ANSWERS)
def test_an_answer_has_its_meaning(
    status: int, headers: dict[str, str], body: object, answer: UpstreamAnswer, not_before_s: float, retryable: bool
) -> None:
    found = read_answer(status, headers, json.dumps(body).encode(), (), NOW)
    assert (found.answer, found.not_before_s, found.retryable) == (answer, pytest.approx(not_before_s), retryable)
    assert found == read_answer(status, tuple(headers.items()), json.dumps(body).encode(), (), NOW), "pairs of headers"


def test_a_reason_has_no_text_of_the_answer() -> None:
    """All tenants of a quota see the reason, and an answer belongs to one of them."""
    for status in (200, 400, 402, 403, 408, 429, 500, 529):
        found = read_answer(status, {"x-secret": "s3cret"}, b'"s3cret credit balance"', (), NOW)
        assert "s3cret" not in found.reason
