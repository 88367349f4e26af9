"""Metrics of the trajectory router. Labels are outcomes, codes and workers, never trajectories."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CALLS = Counter("treadle_trajectory_router_calls", "Calls that ended, by outcome.", ["outcome"])
REFUSED = Counter("treadle_trajectory_router_refused", "Calls that were refused, by reason.", ["code"])
RESENT = Counter(
    "treadle_trajectory_router_resent", "Calls that went to another worker before their first byte.", ["why"]
)
IN_FLIGHT = Gauge("treadle_trajectory_router_in_flight", "Calls that workers answer for this replica's clients.")
WAITING = Gauge("treadle_trajectory_router_waiting", "Calls of this replica's clients that wait for a worker.")
WORKERS = Gauge("treadle_trajectory_router_workers", "Workers by state, as the leader knows them.", ["state"])
LEADING = Gauge("treadle_trajectory_router_leading", "1 while this replica admits the calls of all.")
FIRST_BYTE = Histogram(
    "treadle_trajectory_router_first_byte_seconds",
    "Time from a call's arrival to the first byte of its answer.",
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
QUEUED = Histogram(
    "treadle_trajectory_router_queue_seconds",
    "Time for which calls waited for a worker.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
RECORDED = Counter(
    "treadle_trajectory_router_recorded_tokens",
    "Sampled tokens whose ids were stored, by status of the call.",
    ["status"],
)
RECORD_COMMIT = Histogram(
    "treadle_trajectory_router_record_commit_seconds",
    "Time of a transaction that stores recorded calls.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
