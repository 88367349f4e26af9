"""Metrics of the scaling planner. Labels are pools and kinds, never ids."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

TARGET = Gauge("treadle_scaling_planner_target_units", "Units the pool shall hold.", ["pool"])
DECISIONS = Counter("treadle_scaling_planner_decisions", "Targets published, by their grounds.", ["why"])
DECIDING = Histogram(
    "treadle_scaling_planner_deciding_seconds",
    "Time to decide after one event, for all pools.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
BATCHES = Counter("treadle_scaling_planner_batches", "Batches that ended, as stored.", ["state"])
EXTRA_DELAY = Histogram(
    "treadle_scaling_planner_extra_delay_seconds",
    "Completion of a batch later than its arrivals and executions alone ask for (d of DistRS).",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
