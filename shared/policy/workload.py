"""What the planner knows of batches: workflow, what the last one did, what is expected of the next (DistRS §5.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

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


@dataclass(frozen=True, slots=True)
class ExpectedBatch:
    """A batch that is open, with what is expected of it."""

    batch: str
    stages: tuple[Stage, ...]
    record: BatchRecord
    """Expected to repeat itself: one row of execution times for each stage."""
    max_extra_delay_s: float
    """D: how much later than T it may be complete."""
    first_arrival_s: float = 0.0
    """On a clock common to the batches of one simulation."""

    @property
    def completion_s(self) -> float:
        """T: the earliest moment it could be complete."""
        return self.first_arrival_s + self.record.span_s
