"""Lifecycle of a batch: stream `batches`, read by the planner (group `planner`) and by the leader.

The server-side function that records the last answer also writes `BatchEnded`, so it is neither lost nor doubled. Its
measurements are in the batch's results (`shared.store.results`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.messages.base import Message, Topic

BatchState = Literal["open", "sealed", "complete", "cancelled", "abandoned"]
"""`sealed`: it waits for its last answers after a seal. A sealed batch with all answers is `complete`."""


class StagePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stage's description for the planner."""

    name: str
    pool: str
    units: int
    """Fewest units of an action of this stage."""
    worker_cost: float
    """C_j of DistRS §5.1: cost of one worker, in any unit common to the workflow."""
    timeout_s: float
    quotas: dict[str, float] = {}
    """Quota -> amount that one action of this stage takes."""
    service: str = ""
    """Model service that its actions use; empty: none, or each request names its own."""


class BatchOpened(Message, frozen=True, kw_only=True, tag="batch.opened.v1"):
    """A rollout has begun: the hint that its reward requests will come."""

    batch: str
    tenant: str
    task: str
    size: int | None
    """B of DistRS; None if the trainer did not give it."""
    opened_at: float
    """Unix seconds, Valkey's clock."""
    stages: list[StagePlan]
    max_extra_delay_s: float
    """D of DistRS §5.1."""
    resources: float
    """Rt: resources of the trainer's own cluster. It weighs delay against cost."""


class FirstArrival(Message, frozen=True, kw_only=True, tag="batch.first-arrival.v1"):
    """The first reward request of a batch is in the journal."""

    batch: str
    arrived_at: float


class BatchEnded(Message, frozen=True, kw_only=True, tag="batch.ended.v1"):
    """Every request of the batch is answered."""

    batch: str
    tenant: str
    task: str
    state: BatchState
    opened_at: float
    first_at: float
    ended_at: float
    size: int
    """Requests answered."""


class RolloutProgress(Message, frozen=True, kw_only=True, tag="batch.progress.v1"):
    """Progress of an open batch's rollout, as the trainer reported it. The stream keeps the newest of each batch."""

    batch: str
    at: float
    """Time of the report: Unix seconds, Valkey's clock."""
    generating: int
    """Samples whose reward requests are still to come."""
    tokens: float | None = None
    """Median length of those samples so far; None if it was not reported."""


BATCHES: Topic[BatchOpened | FirstArrival | BatchEnded | RolloutProgress] = Topic(
    "batches", BatchOpened | FirstArrival | BatchEnded | RolloutProgress, maxlen=100_000
)
