"""Metrics of the proxy. Labels are closed sets, never ids."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

ANSWERED = Counter("treadle_proxy_answered", "Actions answered by this replica as leader.", ["ended"])
ACT = Histogram(
    "treadle_proxy_act_seconds",
    "Action completion time: from arrival in the journal to the answer.",
    buckets=(0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
SUBMITTED = Counter("treadle_proxy_submitted", "Submissions through this replica.", ["outcome"])
EPOCH = Gauge("treadle_proxy_leader_epoch", "Epoch in which this replica dispatches; 0 while another one does.")
UNANSWERED = Gauge("treadle_proxy_unanswered_actions", "Unanswered actions the leader knows of.")
WAITING = Gauge("treadle_proxy_waiting_callers", "Actions somebody long-polls for at this replica.")
