"""Claims: amounts that the visits of a simulation take from quotas, as columns for the compiled loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shared.policy.scaling.list_scheduling import Counts, Flags, Floats
from shared.policy.scaling.quota_supply import Supply, SupplyLimit
from shared.policy.scaling.workload import Stage

CONCURRENCY = -1.0
"""Refill that marks a limit of concurrency."""


class Claims(NamedTuple):
    """Amounts of visits, and the limits that they are taken from. The fields of the loop come first, in its order."""

    lane: Counts
    """(visits,) Lane: visits of one pool that take from the same quotas wait in one queue, as in the dispatcher."""
    claim: Counts
    """(visits,) Row of `amounts`."""
    amounts: Floats
    """(claims, limits) Amount taken from each limit; 0: none."""
    quota: Counts
    """(limits,) Number of the limit's quota."""
    most: Floats
    """(limits,)"""
    per_s: Floats
    """(limits,) Refill; `CONCURRENCY`: the amounts are given back at the end of the visit."""
    missing: Floats
    """(limits,) Amount missing from each rate at time 0."""
    names: tuple[str, ...]
    """By quota: its name."""
    limits: tuple[SupplyLimit, ...]
    """The same limits, for texts."""

    @property
    def columns(self) -> tuple[Counts, Counts, Floats, Counts, Floats, Floats, Floats]:
        """Arguments of the loop."""
        return self.lane, self.claim, self.amounts, self.quota, self.most, self.per_s, self.missing

    @property
    def claiming(self) -> Flags:
        """(visits,) Flag of each visit: it takes from a limited quota."""
        found: Flags = np.any(self.amounts[self.claim] > 0, axis=1)
        return found

    def limit_text(self, limit: int) -> str:
        """Return a limit for people: `the quota 'search' (10/s)`."""
        return f"the quota {self.names[self.quota[limit]]!r} ({self.limits[limit].text})"


def claims_of(
    workflows: Sequence[Sequence[Stage]], supply: Supply, steps: tuple[Counts, Counts], pools: Counts
) -> Claims | None:
    """Return the claims of all visits; None if no stage takes from a limited quota.

    Args:
        workflows: by batch.
        supply: the quotas.
        steps: by visit its batch, and its stage there.
        pools: by visit its pool.
    """
    named = {name for stages in workflows for stage in stages for name, amount in stage.quotas.items() if amount > 0}
    names = tuple(sorted(name for name in named if supply.get(name)))
    if not names:
        return None
    limits = [(number, limit) for number, name in enumerate(names) for limit in supply[name]]
    rows: dict[tuple[float, ...], int] = {}
    claim = np.zeros((len(workflows), max(map(len, workflows))), np.int64)
    for batch, stages in enumerate(workflows):
        for place, stage in enumerate(stages):
            row = tuple(stage.quotas.get(names[number], 0.0) for number, _ in limits)
            claim[batch, place] = rows.setdefault(row, len(rows))
    amounts = np.array(list(rows)).reshape(len(rows), len(limits))
    by_visit = claim[steps]
    sets = np.unique(amounts > 0, axis=0, return_inverse=True)[1].reshape(-1)
    _, lane = np.unique(pools.astype(np.int64) * len(rows) + sets[by_visit], return_inverse=True)
    return Claims(
        lane.reshape(-1).astype(np.int64),
        by_visit,
        amounts,
        np.array([number for number, _ in limits], np.int64),
        np.array([limit.most for _, limit in limits], float),
        np.array([CONCURRENCY if limit.per_s is None else limit.per_s for _, limit in limits], float),
        np.array([limit.missing for _, limit in limits], float),
        names,
        tuple(limit for _, limit in limits),
    )
