"""Metrics of the GPU manager. Labels are statuses, steps and levels, never ids or names of services."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from prometheus_client import Counter, Gauge, Histogram

from shared.messages.outcomes import Finished, Outcome
from shared.policy.model.results import ExecutionStatus

ATTEMPTS = Counter("treadle_gpu_manager_attempts", "Attempts that ended on this node.", ["status"])
RUNNING = Gauge("treadle_gpu_manager_running", "Attempts that use an engine or wait for one.")
EVICTIONS = Counter("treadle_gpu_manager_evictions", "Evictions of engines, by level.", ["level"])
LIVENESS = Counter(
    "treadle_gpu_manager_liveness_checks", "Checks of engines that answer nothing, by result.", ["found"]
)
STEP_SECONDS = Histogram(
    "treadle_gpu_manager_step_seconds",
    "Duration of one step of an engine: load, evict, restore, canary, stop.",
    ["step", "outcome"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
WAIT_SECONDS = Histogram(
    "treadle_gpu_manager_wait_seconds",
    "Time from the grant until the engine was resident.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
PREWARMS = Counter(
    "treadle_gpu_manager_prewarms", "Restores of model services before the first request of a batch.", ["outcome"]
)
GPUS_BY_OWNERSHIP = Gauge("treadle_gpu_manager_gpus", "GPUs by ownership, if hooks are set.", ["ownership"])
FAULTY_GPUS = Gauge("treadle_gpu_manager_faulty_gpus", "GPUs that NVML reports as lost or broken.")
HOOK_SECONDS = Histogram(
    "treadle_gpu_manager_hook_seconds",
    "Duration of one call of a hook of the operator: release, acquire.",
    ["hook", "outcome"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)


def observe(report: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    """Wrap `report` so that it counts finished attempts."""
    by_status = {status: ATTEMPTS.labels(status) for status in get_args(ExecutionStatus)}

    def counted(outcome: Outcome) -> None:
        if isinstance(outcome, Finished):
            by_status[outcome.result.status].inc()
        report(outcome)

    return counted
