"""What a planner is told and what it answers: values that can be written down, so that a run can be looked at again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.policy.scaling.reasons import Reason
from shared.policy.scaling.workload import OpenedBatch, PastBatch


@dataclass(frozen=True)
class Restored:
    """What a former process held: targets by pool. Comes first, if at all."""

    targets: Mapping[str, int]


@dataclass(frozen=True)
class Opened:
    """A rollout has begun: the hint that its requests will come."""

    batch: OpenedBatch
    past: tuple[PastBatch, ...]
    """Of its task, the newest last."""
    restored: bool = False
    """It was open before this planner began; nothing is decided yet."""


@dataclass(frozen=True)
class FirstCame:
    """A batch's first request is in the journal."""

    batch: str
    at: float


@dataclass(frozen=True)
class Progressed:
    """What a trainer, or the trajectory router, says of a rollout."""

    batch: str
    at: float
    generating: int
    """Samples that will still come."""
    tokens: float | None
    """Median length of those, so far."""


@dataclass(frozen=True)
class Ended:
    """A batch has ended."""

    batch: str
    past: tuple[PastBatch, ...] = ()
    """Of its task from now on, itself the last; empty where nothing is to be learnt from it."""


@dataclass(frozen=True)
class Sight:
    """One open batch, as the dispatcher sees it."""

    arrived: int
    """Requests that have come."""
    answered: int
    """Of these."""
    queuing: tuple[bytes, ...] = ()
    """By stage: of each request that waits for it two float64, as in `collection.Seen`, Unix seconds."""
    running: tuple[bytes, ...] = ()
    """By stage: of each request it executes three float64."""
    closed: bool = False
    """No more will come: it was sealed."""
    looked_at: float | None = None
    """When it was so, Unix seconds: `arrived` and `answered` are newer. None: now."""
    unqueued_end_at: float | None = None
    """When the last of the answered requests would have been done had none ever queued, Unix seconds. None: unknown."""


@dataclass(frozen=True)
class Looked:
    """The dispatcher's view of the open batches: before every other stimulus, and when `Planner.look_s` says."""

    batches: Mapping[str, Sight]


@dataclass(frozen=True)
class NodesChanged:
    """Nodes have come or gone."""

    units: Mapping[str, int]
    """By pool: what exists."""
    cold_start_s: Mapping[str, float]
    """By pool: from holding a unit more to being able to work on it, as measured."""


@dataclass(frozen=True)
class Woken:
    """The moment that the planner asked for (`Planner.wake_s`) has come."""


Stimulus = Restored | Opened | FirstCame | Progressed | Ended | Looked | NodesChanged | Woken


@dataclass(frozen=True)
class PublishTarget:
    """Command: the pool shall hold so many units."""

    pool: str
    previous: int | None
    units: int
    reason: Reason


@dataclass(frozen=True)
class ExpectCompletion:
    """Command: tell the dispatcher T of a batch, its EBF key."""

    batch: str
    at: float
    """Unix seconds."""


Command = PublishTarget | ExpectCompletion
