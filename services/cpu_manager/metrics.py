"""Metrics of the CPU manager. Labels are kinds and statuses, never ids."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Histogram

from shared.messages.outcomes import RECALLED, Finished, Started

ATTEMPTS = Counter("treadle_cpu_manager_attempts", "Attempts that ended on this node.", ["status"])
EXECUTION = Histogram(
    "treadle_cpu_manager_execution_seconds",
    "Execution of one attempt, from its grant's arrival to its end.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)


def observe(report: Callable[[Started | Finished], None]) -> Callable[[Started | Finished], None]:
    """The same report, counted; what was recalled has not been executed."""
    by_status = {status: ATTEMPTS.labels(status) for status in ("ok", "timeout", "lost", "refused", "cancelled")}

    def counted(outcome: Started | Finished) -> None:
        if isinstance(outcome, Finished) and outcome.reason != RECALLED:
            by_status[outcome.status].inc()
            EXECUTION.observe(outcome.execution_s)
        report(outcome)

    return counted
