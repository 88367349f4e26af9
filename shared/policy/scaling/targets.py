"""Target of one pool from a plan: look-ahead, the demand of open batches, and damping.

Look-ahead: the search (search.py) returns the most units that a pool needs at any time until the open batches are
complete; the paper holds them from the first request to the last (DistRS §5.1). But arrivals ramp up over minutes, and
few requests remain at the end. The schedule that made the plan feasible shows the units in use at every moment. Only
the most of the next few seconds are held.

Damping: targets grow at once and shrink after a delay, to prevent flapping. A unit released too early costs its cold
start when it is needed again; a unit kept too long costs itself. Keeping it for as long as its cold start takes costs
at most twice the optimum for any demand (the bound of the ski-rental problem). So the target is the most that was
needed within that time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shared.policy.scaling.chunked_pools import Services
from shared.policy.scaling.list_scheduling import Counts, Floats
from shared.policy.scaling.open_batch import OpenBatchState
from shared.policy.scaling.outstanding import least_units, most_units
from shared.policy.scaling.quota_supply import UNLIMITED, Supply
from shared.policy.scaling.search import Plan


def needed_within(plan: Plan, until_s: float) -> dict[str, int]:
    """Return the most units that a plan's schedule has in use at once before a moment, by pool.

    Args:
        plan: of batches whose clock begins now.
        until_s: that moment; infinite: the whole schedule.

    Costs a sort of the visits that begin until then.
    """
    inputs, starts = plan.inputs, plan.schedule.starts_s
    begun = (starts <= until_s) & np.isfinite(starts)
    return {
        pool: peak_units(starts[mine], inputs.visits["lasts_s"][mine], inputs.visits["units"][mine])
        for pool, mine in (
            (name, begun & (inputs.visits["pool"] == number)) for number, name in enumerate(inputs.pools)
        )
    }


def peak_units(starts: Floats, lasts: Floats, units: Counts) -> int:
    """Most units in use at once. At one moment, ends precede starts, except for visits that start and end at that
    moment.
    """
    at_once = np.where(starts + lasts > starts, starts + lasts, np.nextafter(starts, np.inf))
    moments = np.concatenate([at_once, starts])
    changes = np.concatenate([-units.astype(np.int64), units.astype(np.int64)])
    held = np.cumsum(changes[np.argsort(moments, kind="stable")])
    return int(held.max(initial=0))


class PoolDemand(NamedTuple):
    """Units of one pool that open batches need."""

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
    limits: tuple[str, ...] = ()
    """Quotas that let fewer of their requests run at once, for the reason."""

    @property
    def units(self) -> int:
        return max(self.soon + self.unknown, self.least)


def pool_demand(
    pool: str,
    active: Sequence[OpenBatchState],
    plan: Plan,
    soon: Mapping[str, int],
    ceiling: int,
    supply: Supply = UNLIMITED,
    until_s: float = math.inf,
    services: Services | None = None,
) -> PoolDemand:
    """Compute the demand for a pool.

    Args:
        pool: the pool.
        active: open batches that need units.
        plan: of those with history.
        soon: by pool, units of the plan that are needed before the next review.
        ceiling: most units that the pool can hold.
        supply: quotas now.
        until_s: seconds until the next review; a stage whose quotas give nothing until then needs no worker.
        services: model services of a pool of chunks; None: its units are no chunks.
    """
    least, unknown, tasks, limits = 0, 0.0, set(), dict[str, None]()
    for state in active:
        stages, counts = state.batch.stages, state.outstanding()
        held_back = state.held_back(supply, until_s)
        least = max(least, least_units(stages, counts, pool, held_back, chunked=services is not None))
        if state.history is None and state.draws_from(pool):
            at_once = state.most_at_once(supply)
            could, can = (most_units(stages, counts, pool, limit, services) for limit in (None, at_once))
            unknown += can
            tasks.add(state.batch.task)
            if can < min(could, ceiling):
                limits |= dict.fromkeys(state.tightest_limits(supply, pool))
    units = int(min(unknown, ceiling))
    return PoolDemand(plan.units.get(pool, 0), soon.get(pool, 0), least, units, tasks, tuple(limits))


@dataclass(slots=True)
class StabilizedTarget:
    """Damped target of one pool. Memory: one entry for each decrease of the demand."""

    _demands: deque[tuple[float, int]] = field(default_factory=deque)
    """(end of the demand, units), decreasing; the last one still holds."""

    def target(self, now: float, needed: int, stabilization_s: float) -> int:
        """Return the units to hold now.

        Args:
            now: seconds, never less than in an earlier call.
            needed: units, from now on.
            stabilization_s: seconds for which units stay held after the demand for them has ended.
        """
        demands = self._demands
        if demands:
            demands[-1] = (now, demands[-1][1])
        while demands and demands[-1][1] <= needed:
            demands.pop()
        while demands and demands[0][0] + stabilization_s <= now:
            demands.popleft()
        demands.append((now, needed))
        return demands[0][1]

    def decreases_at_s(self, stabilization_s: float) -> float:
        """Time at which the target decreases if the demand stays; infinite if the target equals the demand."""
        return self._demands[0][0] + stabilization_s if len(self._demands) > 1 else math.inf
