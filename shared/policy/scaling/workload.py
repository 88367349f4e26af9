"""Batches in the planner: workflow, measurements of past batches, expectations of open ones (DistRS §5.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

UNREACHED = math.nan
"""Execution time of a stage that a request did not reach: it stopped early."""


@dataclass(frozen=True)
class Stage:
    """One step of a workflow, as the planner sees it."""

    name: str
    worker_cost: float
    """C_j: what one worker costs, in any unit common to all stages."""
    timeout_s: float
    """T_j: execution is cut off here."""
    pool: str = ""
    """Pool its units come from; empty: a pool of its own, named after the stage."""
    units: int = 1
    """Units of the pool that one worker holds (the fewest the stage runs with)."""
    quotas: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Quota -> amount that one request takes from it, together with its units."""
    service: str = ""
    """Model service that its requests use, on a chunk of `units` GPUs; empty: none, or each request names its own."""

    @property
    def drawn_from(self) -> str:
        return self.pool or self.name


@dataclass(frozen=True)
class OpenedBatch:
    """A batch at the beginning of its rollout."""

    batch: str
    tenant: str
    task: str
    size: int | None
    """Size that the trainer declared."""
    stages: tuple[Stage, ...]
    max_extra_delay_s: float
    resources: float
    opened_at: float
    """Unix seconds."""
    first_arrival_at: float | None = None

    def same_work(self, other: OpenedBatch) -> bool:
        """Return whether the measurements of one apply to the other: same size and workflow, at any prices and quotas,
        because neither changes an execution.
        """

        def work(batch: OpenedBatch) -> tuple[str, str, int | None, list[Stage]]:
            return (
                batch.tenant,
                batch.task,
                batch.size,
                [replace(stage, worker_cost=0.0, quotas={}) for stage in batch.stages],
            )

        return work(self) == work(other)


@dataclass(frozen=True)
class BatchRecord:
    """Measurements of one batch: the R and S of Algorithm 1.

    Raises:
        ValueError: the rows differ in length, or a time is negative or infinite.
    """

    arrivals_s: tuple[float, ...]
    """r_i: arrival of request i, seconds after the batch's first arrival."""
    executions_s: tuple[tuple[float, ...], ...]
    """s_ij by stage, then request; `UNREACHED` where request i stopped before stage j."""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.arrivals_s) for row in self.executions_s):
            raise ValueError(f"each stage needs {len(self.arrivals_s)} execution times, one for each arrival")
        if not all(0 <= time < math.inf for time in self.arrivals_s):
            raise ValueError("arrivals must be finite and not before the batch's first one")
        if any(time < 0 or time == math.inf for row in self.executions_s for time in row):
            raise ValueError("execution times must be finite and not negative; NaN stands for a stage not reached")

    @property
    def size(self) -> int:
        return len(self.arrivals_s)

    @cached_property
    def span_s(self) -> float:
        """Seconds from the first arrival to the earliest possible completion (equations 1 and 2); 0 when empty."""
        ends = np.array(self.arrivals_s)
        for row in self.executions_s:
            ends = ends + np.nan_to_num(np.array(row), nan=0.0)
        return float(ends.max(initial=0.0))


@dataclass(frozen=True)
class PastBatch:
    """A complete batch and its measurements."""

    opened: OpenedBatch
    record: BatchRecord
    tokens_per_s: float | None = None
    """Token rate of its rollout, as the trainer reported it; None without a report."""

    @property
    def gap_s(self) -> float:
        """Seconds from its opening to its first arrival."""
        first = self.opened.first_arrival_at
        return max(0.0, first - self.opened.opened_at) if first is not None else 0.0


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one batch with expected work left: the `Reqs` of Algorithm 2, as arrays.

    Seconds on a clock common to the batches of one simulation.
    """

    arrivals_s: Floats
    """(n,) Past or expected arrival: its position among the requests of its batch."""
    ready_s: Floats
    """(n,) Earliest start of its next stage: its arrival, or now if it has arrived."""
    executions_s: Floats
    """(stages, n) Duration of each stage; NaN for stages that it has completed or will not reach."""
    running: Flags
    """(n,) Its next stage runs, and the given duration is the remaining time."""
    queued_s: Floats | float = 0.0
    """(n,) Queueing of each so far, in all its stages."""

    @property
    def size(self) -> int:
        return len(self.arrivals_s)

    @property
    def soonest_s(self) -> float:
        """Earliest completion of the last of them from now on; minus infinity without any."""
        return float(self._ends.max(initial=-math.inf))

    @property
    def completion_s(self) -> float:
        """T: completion of the last if none had ever queued (equations 1 and 2); minus infinity without any."""
        return float((self._ends - self.queued_s).max(initial=-math.inf))

    @property
    def _ends(self) -> Floats:
        return np.asarray(self.ready_s + np.nan_to_num(self.executions_s).sum(axis=0))


@dataclass(frozen=True, slots=True)
class ExpectedBatch:
    """An open batch and its expected remaining work."""

    batch: str
    stages: tuple[Stage, ...]
    requests: Requests
    """One row of execution times for each stage."""
    max_extra_delay_s: float
    """D: permitted delay of its completion beyond T."""
    completion_s: float
    """T: earliest possible completion, on the requests' clock."""
    key_s: float | None = None
    """T as the dispatcher knows it, which orders the batches' requests; None: `completion_s`."""

    declared_delay_s: float | None = None
    """D as its task declares it, if the batch is already later; None: `max_extra_delay_s`."""

    @property
    def declared_s(self) -> float:
        """D as its task declares it."""
        return self.max_extra_delay_s if self.declared_delay_s is None else self.declared_delay_s

    @property
    def order_s(self) -> float:
        """The key of its requests."""
        return self.completion_s if self.key_s is None else self.key_s


def repeating(
    batch: str, stages: tuple[Stage, ...], record: BatchRecord, max_extra_delay_s: float, first_arrival_s: float = 0.0
) -> ExpectedBatch:
    """Return a batch without arrivals so far, expected to repeat a former one (Algorithm 1's R and S)."""
    arrivals = first_arrival_s + np.array(record.arrivals_s, float)
    executions = np.array(record.executions_s, float).reshape(len(record.executions_s), record.size)
    requests = Requests(arrivals, arrivals, executions, np.zeros(record.size, bool))
    return ExpectedBatch(batch, stages, requests, max_extra_delay_s, first_arrival_s + record.span_s)
