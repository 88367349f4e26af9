"""Batches, as trainers open and watch them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.api.tasks import Model
from shared.runtime.patterns import IMAGE

Image = Annotated[str, Field(min_length=1, max_length=256, pattern=IMAGE)]
"""Of a container engine."""


class BatchOpening(Model):
    """Opens a batch. All fields are optional: the task knows the rest."""

    size: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Requests to come; default the task's batch_size; neither: until sealed."""
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Your own key, e.g. the training step: opening again with it and the same size returns the same batch."""
    images: Annotated[list[Image], Field(max_length=64)] = []
    """Images that trajectories of this rollout will ask for: nodes that run images pull them now."""


class Spread(Model):
    """How a quantity is distributed, seconds."""

    mean: float
    p50: float
    p99: float
    max: float


class StageProgress(Model):
    """One stage of a batch so far."""

    name: str
    finished: int
    queue_s: Spread | None
    execution_s: Spread | None


class FailureKind(Model):
    """Answers of a batch that are masked and ended alike."""

    ended: str
    """How they ended: refused, sandbox-lost, expired ..."""
    count: int
    share: float
    """Of all answers of the batch so far."""
    reason: str
    """Of the newest of them, its first 500 characters."""


class EnvironmentProgress(Model):
    """Actions in trajectories that name the batch."""

    answered: int
    masked: int
    masked_share: float
    failures: list[FailureKind]
    """The masked ones by how they ended, most first. `share` is of `answered` here."""


class BatchView(Model):
    """A batch as it stands. Times are Unix seconds."""

    id: str
    task: str
    tenant: str
    state: str
    """open, sealed (waiting for its last answers), complete, cancelled, abandoned."""
    size: int | None
    """Requests it has when it is complete. Open: as it was opened, if that was said; once no more can come (sealed or
    ended), what was submitted. It is complete when `answered` gets there."""
    submitted: int
    answered: int
    stuck: int = 0
    """Of those that wait: how many no present node could ever take (`/v1/pools` says what they lack)."""
    masked: int = 0
    """Of those answered: how many are no statement about their sample."""
    masked_share: float = 0.0
    """`masked` of `answered`. A wrong configuration makes it 1 from the first answers on."""
    failures: list[FailureKind] = []
    """The masked ones by how they ended, most first."""
    environments: EnvironmentProgress | None = None
    """Actions in trajectories opened with this `batch`; null before the first answer. They count in no number above."""
    opened_at: float
    first_arrival_at: float | None
    ended_at: float | None
    expected_completion_at: float | None
    """T: when it could be complete with endless resources (DistRS, equations 1 and 2): measured once it has ended,
    before that the planner's estimate from history, or first arrival + the stages' timeouts."""
    extra_delay_s: float | None
    """d: how much later the last answer so far came than it could have; of a complete batch, its extra delay."""
    overhead_s: Spread | None
    stages: list[StageProgress]


Tokens = Annotated[float, Field(ge=0, le=1e12)]


class ProgressReport(Model):
    """How far a rollout is, as its trainer sees it."""

    generating: Annotated[int, Field(ge=0, le=1_000_000)]
    """Samples still being generated: those whose reward requests have not been sent yet. 0: all have been."""
    lengths: Annotated[list[Tokens], Field(max_length=1_000_000)] | None = None
    """Tokens so far of each of those samples, in any order; of some of them where not all are known. They tell a
    rollout that is slower than the last one from one that is merely younger."""


class ProgressReceipt(Model):
    """What became of a report."""

    batch: str
    generating: int
    """As it was reported."""
    taken: bool
    """False: there was one within the last second, which counts; send the next one a second later."""


class BatchList(Model):
    """Open batches, oldest first."""

    batches: list[BatchView]
