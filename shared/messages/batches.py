"""The life of a batch: stream `batches`, read by the planner (group `planner`) and by the leader.

`BatchEnded` is written by the same server-side function that records the last answer, so it is not lost
and not doubled; its measurements are in its results (`shared.store.results`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.messages.base import Message, Topic

BatchState = Literal["open", "sealed", "complete", "cancelled", "abandoned"]
"""`sealed` while it waits for its last answers after a seal; a sealed batch that has them all is `complete`."""


class StagePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the planner needs to know of a stage."""

    name: str
    pool: str
    units: int
    """Fewest units an action of this stage takes."""
    worker_cost: float
    """C_j of DistRS §5.1: what one worker costs, in any unit common to the workflow."""
    timeout_s: float


class BatchOpened(Message, frozen=True, kw_only=True, tag="batch.opened.v1"):
    """A rollout has begun: the hint that its reward requests will come."""

    batch: str
    tenant: str
    task: str
    size: int | None
    """B of DistRS; None where the trainer does not say."""
    opened_at: float
    """Unix seconds, Valkey's clock."""
    stages: list[StagePlan]
    max_extra_delay_s: float
    """D of DistRS §5.1."""
    resources: float
    """Rt: what the trainer's own cluster counts, weighs delay against cost."""


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
    """How far the rollout of an open batch is, by its trainer's word. The stream keeps the newest of each batch."""

    batch: str
    at: float
    """When it was reported: Unix seconds, Valkey's clock."""
    generating: int
    """Samples whose reward requests are still to come."""
    tokens: float | None = None
    """Median length of those samples so far; None where it was not told."""


BATCHES: Topic[BatchOpened | FirstArrival | BatchEnded | RolloutProgress] = Topic(
    "batches", BatchOpened | FirstArrival | BatchEnded | RolloutProgress, maxlen=100_000
)
