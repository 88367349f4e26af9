"""Reasons of targets, for programs and, in one sentence, for people."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from shared.policy.scaling.list_scheduling import TOLERANCE_S
from shared.policy.scaling.search import ExpectedBatch, Outcome

Why = Literal["searched", "ceiling", "no-history", "idle"]
"""`searched`: the fewest units that keep every batch's D; `ceiling`: all units, which are not enough; `no-history`:
units for a zero queue; `idle`: no open batch draws from the pool."""


@dataclass(frozen=True, slots=True)
class BatchOutlook:
    """Expectation for one open batch under the decided target."""

    batch: str
    requests: int
    extra_delay_s: float | None
    """d; None: it would never be complete."""
    max_extra_delay_s: float
    """D."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason of one decision."""

    why: Why
    event: str
    """Event that caused the decision."""
    summary: str
    ceiling: int
    floor: int
    batches: tuple[BatchOutlook, ...] = ()

    def with_held(self, units: int, planned: int, soon: int) -> Reason:
        """Add a note if the held units differ from the plan: fewer are needed soon, or more were needed recently."""
        if self.why == "no-history":
            return self
        summary = self.summary
        if soon < planned:
            summary += f"; {soon:,} of them soon"
        if units > max(soon, self.floor):
            summary += f"; {units:,} stay held, needed recently"
        return replace(self, summary=summary)

    def with_limits(self, limits: Sequence[str]) -> Reason:
        """Add the quotas that limit stages of the pool; each text once."""
        return replace(self, summary="; ".join([self.summary, *dict.fromkeys(limits)])) if limits else self

    def document(self) -> dict[str, Any]:
        """Return the reason as it is stored."""
        return asdict(self)


def counted(units: int, pool: str) -> str:
    """Format an amount: `1 core`, `8 cores`."""
    resource = pool.partition("@")[0]
    return f"{units:,} {resource.removesuffix('s') if units == 1 else resource}"


def idle(event: str, ceiling: int, floor: int) -> Reason:
    return Reason("idle", event, f"no open batch draws from this pool: floor {floor}", ceiling, floor)


def no_history(
    pool: str, event: str, tasks: Sequence[str], units: int, planned: int, ceiling: int, floor: int
) -> Reason:
    """Reason: as many units as the outstanding requests of tasks without history can use.

    Args:
        pool: the pool.
        event: event that caused the decision.
        tasks: without history, with open batches that draw from the pool.
        units: that their requests can use at once.
        planned: units for the batches of other tasks, by the search.
        ceiling: most units the pool can hold.
        floor: fewest it may hold.
    """
    summary = f"no history of task {', '.join(tasks)} yet: "
    if units + planned >= ceiling:
        summary += f"the ceiling of {counted(ceiling, pool)}, so that nothing queues"
    else:
        summary += f"its requests can use {counted(units, pool)} at once, so that nothing queues"
        if planned:
            summary += f"; {planned:,} more for batches of other tasks"
    return Reason("no-history", event, summary, ceiling, floor)


def not_enough(
    pool: str, event: str, batches: Sequence[ExpectedBatch], missed: Outcome, units: int, ceiling: int, floor: int
) -> Reason:
    """Reason: the ceilings cannot meet D. Either the pool is the cause, or it holds what the remaining delay permits.

    Args:
        pool: the pool.
        event: event that caused the decision.
        batches: simulated together.
        missed: outcome of the ceilings.
        units: found for that delay.
        ceiling: most units the pool can hold.
        floor: fewest it may hold.
    """
    late = {one.batch: missed.extra_delay_s[one.batch] - one.declared_s for one in batches}
    worst = max(batches, key=lambda one: late[one.batch])
    to_blame = {stage.drawn_from for stage in worst.stages if stage.name == missed.blamed.get(worst.batch)}
    blame = _delay(worst, missed)
    outlooks = _outlooks(_drawing(pool, batches), missed.extra_delay_s)
    if pool in to_blame or not to_blame:
        summary = f"{_whose(pool, batches)}: even the ceiling of {counted(ceiling, pool)} is not enough: {blame}"
        return Reason("ceiling", event, summary, ceiling, floor, outlooks)
    summary = (
        f"{_whose(pool, batches)}: {_found(pool, units)}; {', '.join(sorted(to_blame))} is the bottleneck: {blame}"
    )
    return Reason("searched", event, summary, ceiling, floor, outlooks)


def searched(
    pool: str,
    event: str,
    batches: Sequence[ExpectedBatch],
    units: int,
    outcome: Outcome,
    fewer: Outcome | None,
    ceiling: int,
    floor: int,
    lowered: float = 1.0,
    limited: Container[str] = (),
) -> Reason:
    """Reason: the fewest units that are enough.

    Args:
        pool: the pool.
        event: event that caused the decision.
        batches: simulated together.
        units: found by the search, before the floor.
        outcome: outcome of these units.
        fewer: outcome of one unit less; None if there is no unit to take away. Not mentioned if the widest stage would
        not fit into it.
        ceiling: most units the pool can hold.
        floor: fewest it may hold.
        lowered: remaining part of the strictness; the ceilings cannot meet more.
        limited: batches that wait for quotas, whatever units there are.
    """
    worst = max(_drawing(pool, batches), key=lambda batch: outcome.extra_delay_s[batch.batch] - batch.declared_s)
    late, limit = outcome.extra_delay_s[worst.batch], worst.declared_s
    met = f"extra delay {late:.1f} s <= D {limit:.1f} s"
    if late > limit + TOLERANCE_S:
        met = f"extra delay {late:.1f} s: batch {worst.batch} is later than D {limit:.1f} s already"
        if worst.batch in limited:
            met = f"extra delay {late:.1f} s: quotas alone delay batch {worst.batch} beyond D {limit:.1f} s"
    summary = f"{_whose(pool, batches)}: {_found(pool, units)}: {met}"
    if fewer is not None and not fewer.feasible and all(map(math.isfinite, fewer.extra_delay_s.values())):
        summary += f"; with {units - 1}, {_broken(batches, fewer)}"
    if lowered < 1.0:
        summary += f"; strictness reduced to {lowered * 100:.0f} % because of the ceilings"
    if floor > units:
        summary += f"; floor {floor}"
    return Reason("searched", event, summary, ceiling, floor, _outlooks(_drawing(pool, batches), outcome.extra_delay_s))


def _found(pool: str, units: int) -> str:
    return f"{counted(units, pool)} {'suffices' if units == 1 else 'suffice'}"


def _broken(batches: Sequence[ExpectedBatch], outcome: Outcome) -> str:
    violation = outcome.violation
    assert violation is not None, "the allocation is feasible"
    batch = next(batch for batch in batches if batch.batch == violation.batch)
    if violation.rule == "delay" or outcome.extra_delay_s[batch.batch] > batch.max_extra_delay_s:
        return _delay(batch, outcome)
    return (
        f"a request that queues for stage {violation.stage} could end {violation.late_s:.1f} s beyond T + D if it "
        "lasted its timeouts"
    )


def _delay(batch: ExpectedBatch, outcome: Outcome) -> str:
    late, stage = outcome.extra_delay_s[batch.batch], outcome.blamed.get(batch.batch, "")
    if math.isinf(late):
        return f"stage {stage} of batch {batch.batch} could never run"
    return f"stage {stage} delays batch {batch.batch} by {late:.1f} s > D {batch.declared_s:.1f} s"


def _drawing(pool: str, batches: Sequence[ExpectedBatch]) -> list[ExpectedBatch]:
    return [batch for batch in batches if any(stage.drawn_from == pool for stage in batch.stages)]


def _whose(pool: str, batches: Sequence[ExpectedBatch]) -> str:
    drawing = _drawing(pool, batches)
    count = sum(batch.requests.size for batch in drawing)
    requests = f"{count:,} request{'' if count == 1 else 's'}"
    names = [batch.batch for batch in drawing]
    return f"{requests} of batch {names[0]}" if len(names) == 1 else f"{requests} of batches {', '.join(names)}"


def _outlooks(batches: Sequence[ExpectedBatch], delays: Mapping[str, float]) -> tuple[BatchOutlook, ...]:
    return tuple(
        BatchOutlook(
            batch.batch,
            batch.requests.size,
            round(delays[batch.batch], 6) if math.isfinite(delays[batch.batch]) else None,
            batch.declared_s,
        )
        for batch in batches
    )
