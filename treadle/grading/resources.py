"""Resource time that a batch used, compared with what a dedicated pool would have held for it.

The dedicated pool is ZQ-Dedicated, the baseline of DistRS §6.1: no request queues and nothing is shared. Its size is
the most units that this batch needs at once if every stage starts as early as it can. It holds them from the first
arrival to the earliest possible completion T, for "allocated resources remain fixed until all requests in the batch
complete" (§5.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shared.api.tasks import StageTemplate
from shared.runtime.units import Seconds
from treadle.client.answers import Answer


class PoolUse(msgspec.Struct, frozen=True):
    """One pool, over one batch or several."""

    pool: str
    used_unit_s: float
    """Units times seconds of execution. A unit is held only while something runs on it."""
    zero_queue_units: int
    """Units that a dedicated pool needs so that nothing queues; the maximum of several batches."""
    dedicated_unit_s: float
    """Unit-seconds that it would hold; the sum of several batches."""

    @property
    def saved(self) -> float:
        """Ratio of the dedicated pool's unit-seconds to the used ones."""
        return self.dedicated_unit_s / self.used_unit_s if self.used_unit_s else 1.0


class Leg(NamedTuple):
    """A stage's use of its pool, as if nothing had queued."""

    pool: str
    units: int
    start_s: Seconds
    end_s: Seconds


def pools_by_stage(stages: Iterable[StageTemplate]) -> dict[str, str]:
    """Return {stage name: its pool}. The pool is of cores if the stage takes any, else of its first resource."""
    return {stage.name: stage.pool for stage in stages}


def legs_of(answers: Iterable[Answer], pools: Mapping[str, str]) -> Iterator[Leg]:
    """Yield every stage of every answer, without gaps from its arrival."""
    for answer in answers:
        at = answer.arrived_at
        for stage in answer.stages:
            yield Leg(pools.get(stage.name, "?"), stage.units, at, at + stage.execution_s)
            at += stage.execution_s


def most_at_once(legs: Sequence[Leg]) -> int:
    """Return the most units held at once. A leg that ends frees its units for one that starts then. O(n log n)."""
    changes = sorted(
        change
        for leg in legs
        if leg.end_s > leg.start_s
        for change in ((leg.end_s, -leg.units), (leg.start_s, leg.units))
    )
    held = most = 0
    for _, units in changes:
        held += units
        most = max(most, held)
    return most


def uses_of(answers: Sequence[Answer], pools: Mapping[str, str]) -> list[PoolUse]:
    """Return what one batch used of each pool, and what a dedicated one would have held."""
    legs = list(legs_of(answers, pools))
    duration_s = max((leg.end_s for leg in legs), default=0.0) - min((leg.start_s for leg in legs), default=0.0)
    uses = []
    for pool in sorted({leg.pool for leg in legs}):
        own = [leg for leg in legs if leg.pool == pool]
        units = most_at_once(own)
        uses.append(
            PoolUse(
                pool=pool,
                used_unit_s=sum(leg.units * (leg.end_s - leg.start_s) for leg in own),
                zero_queue_units=units,
                dedicated_unit_s=units * duration_s,
            )
        )
    return uses


def added(batches: Iterable[Sequence[PoolUse]]) -> list[PoolUse]:
    """Add the uses of several batches. A dedicated pool is sized separately for each."""
    total: dict[str, PoolUse] = {}
    for use in (use for batch in batches for use in batch):
        before = total.get(use.pool)
        if before is not None:
            use = PoolUse(
                pool=use.pool,
                used_unit_s=before.used_unit_s + use.used_unit_s,
                zero_queue_units=max(before.zero_queue_units, use.zero_queue_units),
                dedicated_unit_s=before.dedicated_unit_s + use.dedicated_unit_s,
            )
        total[use.pool] = use
    return [total[pool] for pool in sorted(total)]
