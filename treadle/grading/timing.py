"""Distributions of times, and the extra delay of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from shared.runtime.units import Seconds
from treadle.client.answers import Answer


class TimeSummary(msgspec.Struct, frozen=True):
    """Seconds: mean, median, 99th percentile (both by nearest rank, so measured values) and maximum."""

    mean: Seconds
    p50: Seconds
    p99: Seconds
    max: Seconds


class Acts(msgspec.Struct, frozen=True):
    """Action completion times of answers, by part: total = queueing + execution + overhead."""

    queueing: TimeSummary | None
    execution: TimeSummary | None
    overhead: TimeSummary | None
    total: TimeSummary | None


class StageActs(msgspec.Struct, frozen=True):
    """One stage of the workflow. Overhead is not measured by stage."""

    name: str
    finished: int
    queueing: TimeSummary | None
    execution: TimeSummary | None


def time_summary(values: Sequence[float]) -> TimeSummary | None:
    """Return the distribution of values; None for an empty list. O(n log n)."""
    if not values:
        return None
    ordered = sorted(values)
    return TimeSummary(
        mean=math.fsum(ordered) / len(ordered),
        p50=nearest_rank(ordered, 0.50),
        p99=nearest_rank(ordered, 0.99),
        max=ordered[-1],
    )


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the ascending values for which at least `share` of all values are not larger."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def acts_of(answers: Sequence[Answer]) -> Acts:
    """Return the times of all answers that ran."""
    acts = [answer.act for answer in answers if answer.act is not None and answer.stages]
    return Acts(
        queueing=time_summary([act.queue_s for act in acts]),
        execution=time_summary([act.execution_s for act in acts]),
        overhead=time_summary([act.overhead_s for act in acts]),
        total=time_summary([act.total_s for act in acts]),
    )


def stage_acts(answers: Iterable[Answer], stages: Iterable[str]) -> list[StageActs]:
    """Return the times of each of these stages, in their order."""
    queueing: dict[str, list[float]] = {name: [] for name in stages}
    execution: dict[str, list[float]] = {name: [] for name in queueing}
    for stage in (stage for answer in answers for stage in answer.stages):
        queueing[stage.name].append(stage.queue_s)
        execution[stage.name].append(stage.execution_s)
    return [
        StageActs(name, len(values), queueing=time_summary(queueing[name]), execution=time_summary(values))
        for name, values in execution.items()
    ]


def extra_delay_s(answers: Iterable[Answer]) -> Seconds:
    """Return d: the batch's completion minus the earliest possible T (DistRS §5.1, equations 1 and 2).

    T = max over requests of arrival + summed execution. d includes the mesh's overhead and queueing. 0 without answers.
    """
    ran = [(answer.arrived_at, answer.act) for answer in answers if answer.act is not None and answer.stages]
    ideal = max((arrived + act.execution_s for arrived, act in ran), default=0.0)
    actual = max((arrived + act.total_s for arrived, act in ran), default=0.0)
    return actual - ideal
