"""Arguments and results of the repositories: frozen values that are independent of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.policy.scaling.workload import UNREACHED, BatchRecord

EndState = Literal["complete", "cancelled", "abandoned"]


@dataclass(frozen=True)
class BatchRequests:
    """Measurements of each request: n >= 1 requests, m >= 1 stages, seconds.

    Raises:
        ValueError: the columns differ in length, or there is no request or no stage.
    """

    arrival_s: tuple[float, ...]
    """n; after the batch's first arrival."""
    queue_s: tuple[tuple[float, ...], ...]
    """m x n; NaN where a request stopped before the stage, here and below."""
    execution_s: tuple[tuple[float, ...], ...]
    """m x n."""
    units: tuple[tuple[int, ...], ...]
    """m x n; 0 where a request stopped before the stage."""
    overhead_s: tuple[float, ...]
    """n; total less queueing less execution."""

    def __post_init__(self) -> None:
        n, m = len(self.arrival_s), len(self.execution_s)
        tables: tuple[tuple[tuple[float, ...], ...], ...] = (self.queue_s, self.execution_s, self.units)
        if (
            not (n and m)
            or len(self.overhead_s) != n
            or any(len(t) != m or any(len(row) != n for row in t) for t in tables)
        ):
            raise ValueError(
                f"every column of a batch of {n} requests and {m} stages must have {n} (x {m}) entries, both at least 1"
            )

    def record(self, stages: int) -> BatchRecord:
        """Return the part that the policy needs; see `record`."""
        return record(self.arrival_s, self.execution_s, stages)


def record(arrival_s: Sequence[float], execution_s: Sequence[Sequence[float]], stages: int) -> BatchRecord:
    """Return R and S of DistRS Algorithm 1, from the columns of `BatchRequests`.

    Args:
        arrival_s: n.
        execution_s: m x n.
        stages: of the workflow, >= m. The last ones are not stored if no request reached them.
    """
    unreached = ((UNREACHED,) * len(arrival_s),) * (stages - len(execution_s))
    return BatchRecord(tuple(arrival_s), (*map(tuple, execution_s), *unreached))


@dataclass(frozen=True)
class EndedBatch:
    """A batch at its last answer."""

    batch: str
    tenant: str
    task: str
    state: EndState
    opened_at: float
    first_arrival_at: float
    ended_at: float
    answered: int
    extra_delay_s: float | None = None
    """d: completion beyond the time that arrivals and executions alone need."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of answers by status."""
    requests: BatchRequests | None = None
    """None if nothing ran, or if the measurements must not be learned from."""
    tokens_per_s: float | None = None
    """Rate at which its samples were generated, as the trainer reported."""


Cursor = tuple[int, int]
"""A stream id as numbers."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An archived answer."""

    action: str
    batch: str
    """Empty outside batches."""
    tenant: str
    cursor: Cursor
    """Cursor of the result in its batch; outside one, of the action's journal entry."""
    answer: bytes
    """JSON, as callers read it."""
    expires_at: float
    """Unix seconds. For a result the latest time, because it is deleted with its batch."""


@dataclass(frozen=True)
class StoredPlan:
    """One decision."""

    decided_at: float
    pool: str
    previous: int | None
    """The target before; None for the first."""
    target: int
    reason: Mapping[str, Any]
    """`summary` for people; the other members for programs."""
