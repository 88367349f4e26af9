"""Stimuli and commands of a planner: values that can be logged, so that a run can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.policy.scaling.chunked_pools import Services
from shared.policy.scaling.quota_supply import ObservedQuota
from shared.policy.scaling.reasons import Reason
from shared.policy.scaling.workload import OpenedBatch, PastBatch


@dataclass(frozen=True)
class TargetsRestored:
    """Targets by pool of a former process. The first stimulus, if there is one."""

    targets: Mapping[str, int]


@dataclass(frozen=True)
class BatchAdded:
    """A rollout has begun: its requests are expected."""

    batch: OpenedBatch
    past: tuple[PastBatch, ...]
    """Past batches of its task, the newest last."""
    restored: bool = False
    """The batch was open before this planner started; nothing is decided yet."""


@dataclass(frozen=True)
class FirstRequestArrived:
    """A batch's first request is in the journal."""

    batch: str
    at: float


@dataclass(frozen=True)
class ProgressReported:
    """Progress report of a rollout, by its trainer or the trajectory router."""

    batch: str
    at: float
    generating: int
    """Samples that have not been submitted yet."""
    tokens: float | None
    """Median length of those, so far."""


@dataclass(frozen=True)
class BatchRemoved:
    """A batch has ended."""

    batch: str
    past: tuple[PastBatch, ...] = ()
    """Past batches of its task, itself the last; empty if no open batch uses them."""


@dataclass(frozen=True)
class ObservedBatch:
    """State of one open batch: its counts, and the dispatcher's last snapshot of its unanswered requests."""

    arrived: int
    """Requests that have arrived."""
    answered: int
    """Number of these that are answered."""
    queuing: tuple[bytes, ...] = ()
    """By stage: two float64 of each request that waits for it, as in `collection.CollectionInput`, Unix seconds."""
    running: tuple[bytes, ...] = ()
    """By stage: three float64 of each request it executes."""
    closed: bool = False
    """The batch was sealed: no more requests will come."""
    observed_at: float | None = None
    """Time of the snapshot, Unix seconds: `arrived` and `answered` are newer. None: now."""
    unqueued_end_at: float | None = None
    """Time at which the last answered request would have ended without queueing, Unix seconds; None: unknown."""


@dataclass(frozen=True)
class BatchesObserved:
    """States of the open batches: before every other stimulus, and at the time of `Planner.next_observation_s`."""

    batches: Mapping[str, ObservedBatch]


@dataclass(frozen=True)
class QuotasObserved:
    """Limits and levels of the quotas that the stages of open batches name: before every other stimulus, if there are
    any.
    """

    quotas: Mapping[str, ObservedQuota | None]
    """By name; None: it does not exist."""


@dataclass(frozen=True)
class NodesChanged:
    """Nodes have joined or left."""

    units: Mapping[str, int]
    """By pool: existing units."""
    cold_start_s: Mapping[str, float]
    """By pool: measured seconds from holding a new unit until work can run on it."""
    services: Mapping[str, Services] = field(default_factory=dict)
    """By pool of chunks: its model services. Other pools are missing."""


@dataclass(frozen=True)
class TimerFired:
    """The time that the planner requested (`Planner.wake_s`) has come."""


Stimulus = (
    TargetsRestored
    | BatchAdded
    | FirstRequestArrived
    | ProgressReported
    | BatchRemoved
    | BatchesObserved
    | QuotasObserved
    | NodesChanged
    | TimerFired
)


@dataclass(frozen=True)
class PublishTarget:
    """Command: the pool must hold this many units."""

    pool: str
    previous: int | None
    units: int
    reason: Reason
    chunk: int = 1
    """Units that its work needs together on one node. Nodes should own multiples of it."""


@dataclass(frozen=True)
class WantResidency:
    """Command: a model service is needed soon. Restore it before the first request of the batch arrives."""

    pool: str
    service: str
    degree: int
    """Units of one engine."""
    batch: str


@dataclass(frozen=True)
class ExpectCompletion:
    """Command: publish T of a batch, its EBF key, to the dispatcher."""

    batch: str
    at: float
    """Unix seconds."""


Command = PublishTarget | ExpectCompletion | WantResidency
