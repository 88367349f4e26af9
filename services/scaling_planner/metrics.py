"""Metrics of the scaling planner. Labels are pools and kinds, never ids."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

TARGET = Gauge("treadle_scaling_planner_target_units", "Target of the pool: units that it must hold.", ["pool"])
DECISIONS = Counter("treadle_scaling_planner_decisions", "Targets published, by reason.", ["why"])
DECIDING = Histogram(
    "treadle_scaling_planner_deciding_seconds",
    "Seconds of one decision for all pools.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
BATCHES = Counter("treadle_scaling_planner_batches", "Ended batches stored, by final state.", ["state"])
EXTRA_DELAY = Histogram(
    "treadle_scaling_planner_extra_delay_seconds",
    "Delay of a batch beyond its earliest possible completion (d of DistRS).",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
