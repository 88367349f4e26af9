"""Why a target is what it is, for programs and, in one sentence, for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from shared.policy.scaling import ExpectedBatch, Outcome

Why = Literal["searched", "ceiling", "no-history", "idle"]
"""`searched`: the fewest units that keep every batch's D; `ceiling`: all there is, and not enough; `no-history`: all
there is, so that nothing queues; `idle`: no open batch draws from the pool."""


@dataclass(frozen=True, slots=True)
class BatchOutlook:
    """What is expected of one open batch under the decided target."""

    batch: str
    requests: int
    extra_delay_s: float | None
    """d; None: it would never be complete."""
    max_extra_delay_s: float
    """D."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One decision's grounds."""

    why: Why
    event: str
    """What made the planner decide."""
    summary: str
    ceiling: int
    floor: int
    batches: tuple[BatchOutlook, ...] = ()

    def with_held(self, units: int, planned: int, soon: int) -> Reason:
        """The same, where what is held is not what was planned: less is needed soon, or more was wanted just now."""
        if self.why == "no-history":
            return self
        summary = self.summary
        if soon < planned:
            summary += f"; {soon:,} of them soon"
        if units > max(soon, self.floor):
            summary += f"; {units:,} stay, wanted just now"
        return replace(self, summary=summary)

    def document(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)


def counted(units: int, pool: str) -> str:
    """Units in words: `1 core`, `8 cores`."""
    resource = pool.partition("@")[0]
    return f"{units:,} {resource.removesuffix('s') if units == 1 else resource}"


def idle(event: str, ceiling: int, floor: int) -> Reason:
    return Reason("idle", event, f"no open batch draws from this pool: floor {floor}", ceiling, floor)


def no_history(pool: str, event: str, tasks: Sequence[str], ceiling: int, floor: int) -> Reason:
    summary = (
        f"no history of task {', '.join(tasks)} yet: the ceiling of {counted(ceiling, pool)}, so that nothing queues"
    )
    return Reason("no-history", event, summary, ceiling, floor)


def not_enough(
    pool: str, event: str, batches: Sequence[ExpectedBatch], outcome: Outcome, ceiling: int, floor: int
) -> Reason:
    """The ceiling, because even it breaks a batch's constraint."""
    broken = _broken(batches, outcome)
    summary = f"{_whose(pool, batches)}: even the ceiling of {counted(ceiling, pool)} is not enough: {broken}"
    return Reason("ceiling", event, summary, ceiling, floor, _outlooks(_drawing(pool, batches), outcome.extra_delay_s))


def searched(
    pool: str,
    event: str,
    batches: Sequence[ExpectedBatch],
    units: int,
    outcome: Outcome,
    fewer: Outcome | None,
    ceiling: int,
    floor: int,
) -> Reason:
    """The fewest units that do.

    Args:
        pool: the pool.
        event: what made the planner decide.
        batches: simulated together.
        units: found by the search, before the floor.
        outcome: what they lead to.
        fewer: what one unit less would lead to; None when there is nothing to take away.
            Not mentioned where the widest stage would not fit into it.
        ceiling: most units the pool can hold.
        floor: fewest it may hold.
    """
    worst = max(_drawing(pool, batches), key=lambda batch: outcome.extra_delay_s[batch.batch])
    late, limit = outcome.extra_delay_s[worst.batch], worst.max_extra_delay_s
    found = f"{counted(units, pool)} {'suffices' if units == 1 else 'suffice'}"
    summary = f"{_whose(pool, batches)}: {found}: extra delay {late:.1f} s <= D {limit:.1f} s"
    if fewer is not None and not fewer.feasible and all(map(math.isfinite, fewer.extra_delay_s.values())):
        summary += f"; with {units - 1}, {_broken(batches, fewer)}"
    if floor > units:
        summary += f"; floor {floor}"
    return Reason("searched", event, summary, ceiling, floor, _outlooks(_drawing(pool, batches), outcome.extra_delay_s))


def _broken(batches: Sequence[ExpectedBatch], outcome: Outcome) -> str:
    violation = outcome.violation
    assert violation is not None, "asked what is broken of an allocation that does"
    batch = next(batch for batch in batches if batch.batch == violation.batch)
    late, limit = outcome.extra_delay_s[batch.batch], batch.max_extra_delay_s
    if math.isinf(late):
        return f"stage {violation.stage} of batch {batch.batch} could never run"
    if violation.rule == "delay" or late > limit:
        return f"extra delay {late:.1f} s > D {limit:.1f} s"
    return (
        f"a request that queues for stage {violation.stage} could end {violation.late_s:.1f} s beyond T + D if it "
        "lasted its timeouts"
    )


def _drawing(pool: str, batches: Sequence[ExpectedBatch]) -> list[ExpectedBatch]:
    return [batch for batch in batches if any(stage.drawn_from == pool for stage in batch.stages)]


def _whose(pool: str, batches: Sequence[ExpectedBatch]) -> str:
    drawing = _drawing(pool, batches)
    requests = f"{sum(batch.requests.size for batch in drawing):,} requests"
    names = [batch.batch for batch in drawing]
    return f"{requests} of batch {names[0]}" if len(names) == 1 else f"{requests} of batches {', '.join(names)}"


def _outlooks(batches: Sequence[ExpectedBatch], delays: Mapping[str, float]) -> tuple[BatchOutlook, ...]:
    return tuple(
        BatchOutlook(
            batch.batch,
            batch.requests.size,
            round(delays[batch.batch], 6) if math.isfinite(delays[batch.batch]) else None,
            batch.max_extra_delay_s,
        )
        for batch in batches
    )
