"""What the planner knows of batches: workflow, what the last one did, what is expected of the next (DistRS §5.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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

    @property
    def drawn_from(self) -> str:
        return self.pool or self.name


@dataclass(frozen=True)
class OpenedBatch:
    """A batch when its rollout began."""

    batch: str
    tenant: str
    task: str
    size: int | None
    """As the trainer declared it."""
    stages: tuple[Stage, ...]
    max_extra_delay_s: float
    resources: float
    opened_at: float
    """Unix seconds."""
    first_arrival_at: float | None = None

    def same_work(self, other: OpenedBatch) -> bool:
        """Whether what one did tells of the other: another size or workflow starts anew, other prices do not."""

        def work(batch: OpenedBatch) -> tuple[str, str, int | None, list[Stage]]:
            return batch.tenant, batch.task, batch.size, [replace(stage, worker_cost=0.0) for stage in batch.stages]

        return work(self) == work(other)


@dataclass(frozen=True)
class BatchRecord:
    """What one batch did: the R and S of Algorithm 1.

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
    """A complete batch and what it did."""

    opened: OpenedBatch
    record: BatchRecord
    tokens_per_s: float | None = None
    """How fast its samples were generated, as the trainer reported; None where it never did."""

    @property
    def gap_s(self) -> float:
        """Seconds from its opening to its first arrival."""
        first = self.opened.first_arrival_at
        return max(0.0, first - self.opened.opened_at) if first is not None else 0.0


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one batch that are expected to need something yet: the `Reqs` of Algorithm 2, as arrays.

    Seconds on a clock common to the batches of one simulation.
    """

    arrivals_s: Floats
    """(n,) When each came or will come: its place among the requests of its batch."""
    ready_s: Floats
    """(n,) From when its next stage can run: its arrival, or now where it has come already."""
    executions_s: Floats
    """(stages, n) What each stage takes; NaN for stages that are behind it or that it will not reach."""
    running: Flags
    """(n,) Its next stage is under way, and the time given is what remains of it."""
    queued_s: Floats | float = 0.0
    """(n,) How long each has queued already, in all its stages."""

    @property
    def size(self) -> int:
        return len(self.arrivals_s)

    @property
    def soonest_s(self) -> float:
        """When the last of them could be done from now on; minus infinity without any."""
        return float(self._ends.max(initial=-math.inf))

    @property
    def completion_s(self) -> float:
        """T: when the last would be done had none ever queued (equations 1 and 2); minus infinity without any."""
        return float((self._ends - self.queued_s).max(initial=-math.inf))

    @property
    def _ends(self) -> Floats:
        return np.asarray(self.ready_s + np.nan_to_num(self.executions_s).sum(axis=0))


@dataclass(frozen=True, slots=True)
class ExpectedBatch:
    """A batch that is open, with what is expected of it."""

    batch: str
    stages: tuple[Stage, ...]
    requests: Requests
    """One row of execution times for each stage."""
    max_extra_delay_s: float
    """D: how much later than T it may be complete."""
    completion_s: float
    """T: the earliest moment it could be complete, on the requests' clock."""
    key_s: float | None = None
    """T as the dispatcher has it, which orders the batches' requests; None: `completion_s`."""

    declared_delay_s: float | None = None
    """D as its task declares it, where the batch is later already; None: `max_extra_delay_s`."""

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
    """A batch of which nothing has come yet, expected to do what a former one did (Algorithm 1's R and S)."""
    arrivals = first_arrival_s + np.array(record.arrivals_s, float)
    executions = np.array(record.executions_s, float).reshape(len(record.executions_s), record.size)
    requests = Requests(arrivals, arrivals, executions, np.zeros(record.size, bool))
    return ExpectedBatch(batch, stages, requests, max_extra_delay_s, first_arrival_s + record.span_s)
