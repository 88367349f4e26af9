"""Decisions of the planner: streams `targets` and `completions`, which the leader reads from their beginning.

There are two streams, because T of an open batch is published at each review that changes it. A pool's target may be
valid for hours, and these messages must not push it out. Nodes with model services read a third one, `residencies`.
"""

from __future__ import annotations

from shared.messages.base import Message, Topic


class TargetSet(Message, frozen=True, kw_only=True, tag="target.set.v1"):
    """Hold this many units of a pool. The dispatcher distributes it over the pool's nodes."""

    pool: str
    units: int
    decided_at: float
    reason: str
    chunk: int = 1
    """Units that its work needs together on one node: nodes own multiples of it where possible."""


class CompletionExpected(Message, frozen=True, kw_only=True, tag="batch.completion-expected.v1"):
    """Expected completion of a batch, from its task's history and its progress: T of DistRS §5.1, the EBF key."""

    batch: str
    at: float
    """Unix seconds, Valkey's clock."""


class ResidencyWanted(Message, frozen=True, kw_only=True, tag="residency.wanted.v1"):
    """A batch needs a model service soon: restore it before the first request arrives.

    The planner repeats it at each review until the first request has come.
    """

    pool: str
    service: str
    degree: int
    """Units of one engine."""
    batch: str


TARGETS: Topic[TargetSet | CompletionExpected] = Topic("targets", TargetSet | CompletionExpected, maxlen=10_000)
"""Entries of T in this stream are of a planner of an older version."""
COMPLETIONS: Topic[CompletionExpected] = Topic("completions", CompletionExpected, maxlen=10_000)
RESIDENCIES: Topic[ResidencyWanted] = Topic("residencies", ResidencyWanted, maxlen=1_000)
