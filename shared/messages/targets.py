"""What the planner wants: stream `targets`, tailed by the leader from its beginning."""

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
    """When a batch should be complete, from its task's history: T of DistRS §5.1, the EBF key."""

    batch: str
    at: float
    """Unix seconds, Valkey's clock."""


TARGETS: Topic[TargetSet | CompletionExpected] = Topic("targets", TargetSet | CompletionExpected, maxlen=10_000)
