"""Metrics of the quota manager. Labels are statuses and answers, never ids, hosts or names of quotas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import Counter, Gauge, Histogram

from shared.messages.outcomes import RECALLED, Finished, Outcome
from shared.policy.model.results import ExecutionStatus, UpstreamAnswer

ATTEMPTS = Counter("treadle_quota_manager_attempts", "Attempts that ended on this node.", ["status"])
ANSWERS = Counter(
    "treadle_quota_manager_answers",
    "Calls by the upstream's answer: ok, pushed-back, failed, exhausted.",
    ["answer"],
)
CALLS = Gauge("treadle_quota_manager_calls", "Calls that are being made.")
SECONDS = Histogram(
    "treadle_quota_manager_call_seconds",
    "Duration of one call that was answered, redirects included.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)


@dataclass(slots=True)
class CallMetrics:
    """Metrics of calls, with their labels resolved."""

    seconds: Histogram = SECONDS
    answers: dict[str, Counter] = field(
        default_factory=lambda: {name: ANSWERS.labels(name) for name in get_args(UpstreamAnswer)}
    )


def observe(report: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    """Wrap `report` so that it counts finished attempts. Recalled grants are not counted: they have not executed."""
    by_status = {status: ATTEMPTS.labels(status) for status in get_args(ExecutionStatus)}

    def counted(outcome: Outcome) -> None:
        if isinstance(outcome, Finished) and outcome.result.reason != RECALLED:
            by_status[outcome.result.status].inc()
        report(outcome)

    return counted
