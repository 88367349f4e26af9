"""Reward workloads for replay: arrivals, and durations of every stage (DistRS §3, §6.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shared.policy.scaling.workload import Stage

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TracedBatch:
    """One batch of requests, ordered by arrival.

    Raises:
        ValueError: shapes differ, or arrivals are not ascending.
    """

    arrivals_s: Floats
    """Seconds after the batch's start (the start of its rollout); ascending, shape (n,)."""
    executions_s: Floats
    """Seconds by stage, then request; NaN if the request stopped earlier, shape (stages, n)."""
    start_s: float | None = None
    """Open loop: when the batch starts. None: closed loop."""
    gap_s: float = 0.0
    """Closed loop: seconds from the completion of the task's previous batch (its first: from time 0) to the start."""
    lengths: Floats | None = None
    """Tokens of each sample's output, NaN if unknown, shape (n,); None: the trace has none."""

    def __post_init__(self) -> None:
        n = len(self.arrivals_s)
        if self.executions_s.ndim != 2 or self.executions_s.shape[1] != n:
            raise ValueError(f"executions must have the shape (stages, {n}), not {self.executions_s.shape}")
        if self.lengths is not None and self.lengths.shape != (n,):
            raise ValueError(f"lengths must have the shape ({n},), not {self.lengths.shape}")
        if np.any(np.diff(self.arrivals_s) < 0):
            raise ValueError("arrivals must ascend: sort the requests by them")

    @property
    def tokens_per_s(self) -> float | None:
        """Median token rate of samples with a known length; None without any."""
        if self.lengths is None:
            return None
        known = (self.lengths > 0) & (self.arrivals_s > 0)
        return float(np.median(self.lengths[known] / self.arrivals_s[known])) if known.any() else None

    @property
    def size(self) -> int:
        return len(self.arrivals_s)

    def reached(self, stage: int) -> NDArray[np.bool_]:
        """Return which requests reached the stage, shape (n,)."""
        reached: NDArray[np.bool_] = ~np.isnan(self.executions_s[stage])
        return reached

    @cached_property
    def ideal_span_s(self) -> float:
        """T: seconds from the start to the earliest possible completion (equations 1 and 2); 0 when empty."""
        return float((self.arrivals_s + np.nansum(self.executions_s, axis=0)).max(initial=0.0))


@dataclass(frozen=True)
class TracedTask:
    """One training task: its batches in the order in which they run."""

    task: str
    batches: tuple[TracedBatch, ...]


@dataclass(frozen=True)
class RewardTrace:
    """A workload to replay.

    Raises:
        ValueError: a stage shares its pool, a batch has another number of stages, or not every stage has a cold start.
    """

    stages: tuple[Stage, ...]
    """Each with a pool of its own, one unit a worker."""
    max_extra_delay_s: float
    """D: permitted delay of a batch beyond T (§5.1)."""
    tasks: tuple[TracedTask, ...]
    cold_starts_s: tuple[float, ...] = ()
    """By stage: seconds from the request of a worker until it is usable. Empty: zeros."""

    def __post_init__(self) -> None:
        if not self.cold_starts_s:
            object.__setattr__(self, "cold_starts_s", (0.0,) * len(self.stages))
        if len(self.cold_starts_s) != len(self.stages):
            raise ValueError(f"{len(self.stages)} stages need as many cold starts, not {len(self.cold_starts_s)}")
        if any(stage.drawn_from != stage.name or stage.units != 1 for stage in self.stages):
            raise ValueError("each stage of a trace has a pool of its own, one unit a worker")
        if any(len(batch.executions_s) != len(self.stages) for task in self.tasks for batch in task.batches):
            raise ValueError(f"each batch needs {len(self.stages)} rows of executions, one for each stage")


def quicker(trace: RewardTrace, times: float, batches: int) -> RewardTrace:
    """Return the trace with all seconds divided by `times`, and of each task the batches in the middle of its training.

    Neighbours of a long training resemble each other. In a training generated with few iterations they would differ.
    """
    first = max(0, (max((len(task.batches) for task in trace.tasks), default=0) - batches) // 2)
    return RewardTrace(
        stages=tuple(replace(stage, timeout_s=stage.timeout_s / times) for stage in trace.stages),
        max_extra_delay_s=trace.max_extra_delay_s / times,
        tasks=tuple(_quicker(task, times, slice(first, first + batches)) for task in trace.tasks),
        cold_starts_s=tuple(seconds / times for seconds in trace.cold_starts_s),
    )


def _quicker(task: TracedTask, times: float, those: slice) -> TracedTask:
    """Return some batches of a task; the first of them starts when the task's first batch started."""
    kept = [
        replace(
            batch,
            arrivals_s=batch.arrivals_s / times,
            executions_s=batch.executions_s / times,
            start_s=None if batch.start_s is None else batch.start_s / times,
            gap_s=batch.gap_s / times,
        )
        for batch in task.batches[those]
    ]
    return TracedTask(task.task, (replace(kept[0], gap_s=task.batches[0].gap_s / times), *kept[1:]))
