"""Units that open batches ask of one pool: what the search found, and what is asked whatever it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.policy.scaling.open_batch import OpenBatchState
from shared.policy.scaling.outstanding import least_units, most_units
from shared.policy.scaling.search import Plan


class Wish(NamedTuple):
    """Units of one pool that open batches ask for."""

    planned: int
    """By the search."""
    soon: int
    """Of these."""
    least: int
    """One worker of each stage that an outstanding request may need."""
    unknown: int
    """As many as outstanding requests of tasks without history can use."""
    tasks: set[str]
    """These tasks."""

    @property
    def wanted(self) -> int:
        return max(self.soon + self.unknown, self.least)


def wished(pool: str, wanting: Sequence[OpenBatchState], plan: Plan, soon: Mapping[str, int], ceiling: int) -> Wish:
    """Units of a pool.

    Args:
        pool: the pool.
        wanting: open batches that ask for units.
        plan: of those with history.
        soon: by pool, what of the plan is needed before the next look.
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
