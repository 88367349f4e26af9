"""Bodies of `/v1/batches`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.api.tasks import Model
from shared.messages.batches import BatchState
from shared.runtime.patterns import IMAGE

Image = Annotated[str, Field(min_length=1, max_length=256, pattern=IMAGE)]
"""Image name of a container engine."""


class BatchOpening(Model):
    """Opens a batch. All fields are optional; the task has defaults."""

    size: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Number of requests. Default: the task's `batch_size`. If neither is set, the batch ends when it is sealed."""
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Idempotency key, for example the training step. A repeat with the same key and size returns the same batch."""
    images: Annotated[list[Image], Field(max_length=64)] = []
    """Images that trajectories of this rollout will need. Nodes that run images pull them now."""


class Spread(Model):
    """Distribution of a duration, seconds."""

    mean: float
    p50: float
    p99: float
    max: float


class StageProgress(Model):
    """Progress of one stage of a batch."""

    name: str
    finished: int
    queue_s: Spread | None
    execution_s: Spread | None


class FailureKind(Model):
    """Masked answers of a batch with the same end."""

    ended: str
    """Their end: refused, sandbox-lost, expired ..."""
    count: int
    share: float
    """Share of all answers of the batch so far."""
    reason: str
    """Reason of the newest one, its first 500 characters."""


class EnvironmentProgress(Model):
    """Actions in trajectories that name the batch."""

    answered: int
    masked: int
    masked_share: float
    failures: list[FailureKind]
    """Masked answers by their end, most frequent first. `share` is a share of `answered`."""
    usage: dict[str, float] = {}
    """Sums of the usage of these actions, by name."""


class BatchView(Model):
    """Status of a batch. Times are Unix seconds."""

    id: str
    task: str
    tenant: str
    state: BatchState
    """`sealed`: it accepts no more requests and waits for its last answers. `abandoned`: it was idle for too long."""
    size: int | None
    """Number of requests: as it was opened, or null; once sealed or ended, the submitted ones. It is complete when
    `answered` is equal to it."""
    submitted: int
    answered: int
    stuck: int = 0
    """Waiting requests that no present node can execute. `lacks` in `/v1/pools` names the missing resources."""
    masked: int = 0
    """Answers without a verdict."""
    masked_share: float = 0.0
    """`masked` / `answered`. With a wrong configuration it is 1 from the first answers on."""
    failures: list[FailureKind] = []
    """Masked answers by their end, most frequent first."""
    usage: dict[str, float] = {}
    """Sums of the answers' `usage`, by name."""
    environments: EnvironmentProgress | None = None
    """Actions in trajectories opened with this `batch`; null before the first answer. No other field counts them."""
    opened_at: float
    first_arrival_at: float | None
    ended_at: float | None
    expected_completion_at: float | None
    """T: completion with unlimited resources (DistRS, equations 1 and 2). Measured after the end; before it, the
    planner's estimate from history, or first arrival + the stages' timeouts."""
    extra_delay_s: float | None
    """d: delay of the last answer so far behind T; of a complete batch, its extra delay."""
    overhead_s: Spread | None
    stages: list[StageProgress]


Tokens = Annotated[float, Field(ge=0, le=1e12)]


class ProgressReport(Model):
    """A trainer's report of a rollout's progress."""

    generating: Annotated[int, Field(ge=0, le=1_000_000)]
    """Samples whose reward requests are still to be sent; 0: none."""
    lengths: Annotated[list[Tokens], Field(max_length=1_000_000)] | None = None
    """Tokens so far of each of these samples, in any order; of some of them if not all are known. They distinguish a
    rollout that is slower than the last one from one that began later."""


class ProgressReceipt(Model):
    """Receipt of a progress report."""

    batch: str
    generating: int
    """The reported number."""
    taken: bool
    """False: another report arrived within the last second and counts instead. Send the next one a second later."""


class BatchList(Model):
    """Open batches, oldest first."""

    batches: list[BatchView]
