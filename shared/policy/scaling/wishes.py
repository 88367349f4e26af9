"""Units that open batches request of one pool: from the search, and independent of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.policy.scaling.open_batch import OpenBatchState
from shared.policy.scaling.outstanding import least_units, most_units
from shared.policy.scaling.search import Plan


class Wish(NamedTuple):
    """Units of one pool that open batches request."""

    planned: int
    """Units found by the search."""
    soon: int
    """Units of these that are needed before the next review."""
    least: int
    """Units for one worker of each stage that an outstanding request may need."""
    unknown: int
    """Units that outstanding requests of tasks without history can use."""
    tasks: set[str]
    """Tasks without history."""

    @property
    def wanted(self) -> int:
        return max(self.soon + self.unknown, self.least)


def wished(pool: str, wanting: Sequence[OpenBatchState], plan: Plan, soon: Mapping[str, int], ceiling: int) -> Wish:
    """Compute the units of a pool.

    Args:
        pool: the pool.
        wanting: open batches that request units.
        plan: of those with history.
        soon: by pool, units of the plan that are needed before the next review.
        ceiling: most units that the pool can hold.
    """
    least, unknown, tasks = 0, 0.0, set()
    for known in wanting:
        stages, counts = known.batch.stages, known.outstanding()
        least = max(least, least_units(stages, counts, pool))
        if known.history is None and known.draws_from(pool):
            unknown += most_units(stages, counts, pool)
            tasks.add(known.batch.task)
    return Wish(plan.units.get(pool, 0), soon.get(pool, 0), least, int(min(unknown, ceiling)), tasks)
