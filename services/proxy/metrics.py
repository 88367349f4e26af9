"""Metrics of the proxy. Labels are closed sets, never ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from prometheus_client import Counter, Gauge, Histogram

from shared.policy.model.brakes import Brake
from shared.policy.model.formulation import EndedAs
from shared.policy.model.results import USAGE, UpstreamAnswer, Usage
from shared.runtime.units import Seconds

ANSWERED = Counter("treadle_proxy_answered", "Actions answered by this replica as leader.", ["ended"])
ANSWERED_AS: Final = {ended: ANSWERED.labels(ended) for ended in get_args(EndedAs)}
"""End -> its counter, because a lookup each time costs twice as much."""
ACT = Histogram(
    "treadle_proxy_act_seconds",
    "Action completion time: from arrival in the journal to the answer.",
    buckets=(0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
SUBMITTED = Counter("treadle_proxy_submitted", "Submissions through this replica.", ["outcome"])
EPOCH = Gauge("treadle_proxy_leader_epoch", "Epoch in which this replica dispatches; 0 while another one does.")
UNANSWERED = Gauge("treadle_proxy_unanswered_actions", "Unanswered actions the leader knows of.")
WAITING = Gauge("treadle_proxy_waiting_callers", "Actions that a caller of this replica waits for.")
ARCHIVED = Counter("treadle_proxy_archived_answers", "Answers that this replica has copied from Valkey to Postgres.")
ARCHIVE_FAILURES = Counter("treadle_proxy_archive_failures", "Runs of the archiver that failed; it tries again.")
QUEUE = Histogram(
    "treadle_proxy_queue_seconds",
    "Queueing of answered actions, by pool and by name of the stage (`other` beyond 128 pairs).",
    ["pool", "stage"],
    buckets=(0.01, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
UNTRACED = Counter("treadle_proxy_untraced_actions", "Answered actions that traces lack, because a write failed.")
PARKED = Counter("treadle_proxy_parkings", "Requests to park an action that this replica has sent to nodes, as leader.")
RESUMED = Counter("treadle_proxy_resumptions", "Parked actions that this replica has let continue, as leader.")
PARKED_NOW = Gauge("treadle_proxy_parked_actions", "Actions that are parked, or wait for units to continue.")
QUEUED = Gauge("treadle_proxy_queued_actions", "Actions that wait in a pool, as the leader counts them.", ["pool"])
STUCK = Gauge("treadle_proxy_stuck_actions", "Those of them that no present node could ever take.", ["pool"])
UPSTREAM = Gauge(
    "treadle_proxy_quota_upstream",
    "1: the external service behind a quota is slowed, open, half-open or exhausted; no entry while it is ok.",
    ["quota", "state"],
)
UPSTREAM_ANSWERS = Counter(
    "treadle_proxy_upstream_answers",
    "Answers of external services that attempts have reported: ok, pushed-back, failed, exhausted.",
    ["answer"],
)
ANSWERED_WITH: Final = {answer: UPSTREAM_ANSWERS.labels(answer) for answer in get_args(UpstreamAnswer)}
QUOTA_WAITING = Gauge(
    "treadle_proxy_quota_waiting_actions",
    "Actions that wait and take from a quota, as the leader counts them.",
    ["quota"],
)
QUOTA_HELD = Gauge("treadle_proxy_quota_held", "Amount of a quota that granted actions hold.", ["quota"])
NODES = Gauge("treadle_proxy_nodes", "Nodes that the leader has met: ready, silent, gone.", ["state"])
STORE_UP = Gauge("treadle_proxy_store_up", "1 while the store answers this replica.", ["store"])
LEADER_UP = Gauge("treadle_proxy_leader_up", "1 while a proxy holds the dispatching lease.")
PLANNER_UP = Gauge("treadle_proxy_planner_up", "1 while a planner holds its lease.")
VALKEY_USED = Gauge("treadle_proxy_valkey_used_bytes", "Memory that Valkey uses.")
VALKEY_BOUND = Gauge("treadle_proxy_valkey_bound_bytes", "Memory that Valkey may use; 0: no bound.")
DISK_FREE = Gauge("treadle_proxy_disk_free_bytes", "Free space of the fullest disk that holds a store.")
DISK_TOTAL = Gauge("treadle_proxy_disk_total_bytes", "Size of that disk.")
RESTARTS = Gauge(
    "treadle_proxy_service_restarts", "Restarts by the supervisor of this machine since `treadle up`.", ["service"]
)
HELD = Gauge("treadle_proxy_held_calls", "Calls of /run_code that this replica holds open.")
RESUBMITTED = Counter("treadle_proxy_held_resubmissions", "Lost actions that held calls submitted again.")
RUN_CODE = Counter(
    "treadle_proxy_run_code_calls",
    "Accepted calls of /run_code: answered; late (504); gave-up (SandboxError of a held call); disconnected; stopped.",
    ["ended"],
)
RETRIEVE = Counter(
    "treadle_proxy_retrieve_calls",
    "Accepted calls of /retrieve: answered; late (503, its repeat joins it); failed (503); disconnected; stopped.",
    ["ended"],
)
BODIES = Gauge("treadle_proxy_body_bytes", "Bytes of request bodies under way at this replica.")

USAGE_TOTAL = Counter(
    "treadle_proxy_usage",
    "Usage of answered actions, by name: " + "; ".join(f"{name}: {what}" for name, what in USAGE.items()) + "; other.",
    ["name"],
)

OTHER = "other"


def show_upstreams(brakes: Mapping[str, Brake], now: Seconds) -> None:
    """Set the gauge of external services. O(brakes); there are at most as many as quotas."""
    UPSTREAM.clear()
    for quota, brake in brakes.items():
        if (state := brake.state(now)) != "ok":
            UPSTREAM.labels(quota, state).set(1)


class PoolStages:
    """Labels of `QUEUE`. Callers choose the names of stages and pools, so the number of pairs is bounded."""

    def __init__(self, most: int = 128) -> None:
        self._most = most
        self._known: dict[tuple[str, str], Histogram] = {}

    def observe(self, pool: str, stage: str, queue_s: float) -> None:
        """Count one stage. The label objects are cached, because a lookup each time costs twice as much."""
        known = self._known.get((pool, stage))
        if known is None:
            pair = (pool, stage) if len(self._known) < self._most else (OTHER, OTHER)
            known = QUEUE.labels(*pair)
            if len(self._known) < self._most:
                self._known[pair] = known
        known.observe(queue_s)


QUEUEING = PoolStages()


class UsageCounters:
    """Counters of `USAGE_TOTAL`. Executors choose names of usage, so names that are not in `USAGE` count as `other`."""

    def __init__(self) -> None:
        self._known = {name: USAGE_TOTAL.labels(name) for name in USAGE}
        self._other = USAGE_TOTAL.labels(OTHER)

    def add(self, usage: Usage) -> None:
        """Count the usage of one answered action."""
        for name, amount in usage.items():
            self._known.get(name, self._other).inc(amount)


USED = UsageCounters()
