"""Decisions of the planner: streams `targets` and `completions`, which the leader reads from their beginning.

They are apart because T of an open batch is published at each review that moves it. A pool's target may stand for hours
and must not be pushed out by that.
"""

from __future__ import annotations

from shared.messages.base import Message, Topic

PLANNER_LEASE = "planner:lease"
"""Key that a living planner renews every few seconds and that expires by itself; while it is away the leader lets a
zero-queue rule serve beside the targets (`Pool.wanted`)."""


class TargetSet(Message, frozen=True, kw_only=True, tag="target.set.v1"):
    """Hold this many units of a pool. The dispatcher spreads it over the pool's nodes."""

    pool: str
    units: int
    decided_at: float
    reason: str


class CompletionExpected(Message, frozen=True, kw_only=True, tag="batch.completion-expected.v1"):
    """Expected completion of a batch by its task's history and what is seen of it: T of DistRS §5.1, the EBF key."""

    batch: str
    at: float
    """Unix seconds, Valkey's clock."""


TARGETS: Topic[TargetSet | CompletionExpected] = Topic("targets", TargetSet | CompletionExpected, maxlen=10_000)
"""Entries of T are those of a planner of an older version."""
COMPLETIONS: Topic[CompletionExpected] = Topic("completions", CompletionExpected, maxlen=10_000)
