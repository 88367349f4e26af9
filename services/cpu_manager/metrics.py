"""Metrics of the CPU manager. Labels are kinds and statuses, never ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from prometheus_client import Counter, Gauge, Histogram

from shared.messages.outcomes import RECALLED, Finished, Outcome
from shared.policy.model.results import ExecutionStatus

ATTEMPTS = Counter("treadle_cpu_manager_attempts", "Attempts that ended on this node.", ["status"])
EXECUTION = Histogram(
    "treadle_cpu_manager_execution_seconds",
    "Execution of one attempt, from its grant's arrival to its end.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
ENVIRONMENTS = Gauge("treadle_cpu_manager_environments", "Trajectories' environments that exist on this node.")
CREATION = Histogram(
    "treadle_cpu_manager_environment_creation_seconds",
    "Creation of one environment, set-up lines included; the count is that of created environments.",
    ["runtime"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
ENVIRONMENTS_ENDED = Counter(
    "treadle_cpu_manager_environments_ended",
    "Environments that ended: closed, idle, lifetime, died, stopped.",
    ["reason"],
)

MODEL_WAITS = Histogram(
    "treadle_cpu_manager_model_wait_seconds",
    "Time for which an action was parked because its environment waited for its model.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
)


def observe(report: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    """Wrap `report` so that it counts finished attempts. Recalled grants are not counted: they have not executed."""
    by_status = {status: ATTEMPTS.labels(status) for status in get_args(ExecutionStatus)}

    def counted(outcome: Outcome) -> None:
        if isinstance(outcome, Finished) and outcome.result.reason != RECALLED:
            by_status[outcome.result.status].inc()
            EXECUTION.observe(outcome.execution_s)
        report(outcome)

    return counted
