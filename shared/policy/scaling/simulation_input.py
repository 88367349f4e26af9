"""Input of SIMULATE as arrays that do not depend on the number of units: created once, simulated often."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from shared.policy.scaling.list_scheduling import TOLERANCE_S, VISIT, Counts, Flags, Floats, Records
from shared.policy.scaling.quota_claims import Claims, claims_of
from shared.policy.scaling.quota_supply import UNLIMITED, Supply, granted_in_s
from shared.policy.scaling.simulation_kernel import most_at_once, run_with_quotas
from shared.policy.scaling.workload import ExpectedBatch, Stage


class ScheduleInput(NamedTuple):
    """Input of list scheduling (shared/policy/scaling/simulation_kernel.py)."""

    visits: Records
    arrivals_s: Floats
    first_visits: Counts
    under_way: Counts
    """Visits that run at the beginning."""
    begins_s: float
    claims: Claims | None = None
    """What the visits take from quotas; None: nothing."""


class UnlimitedUnits(NamedTuple):
    """Schedule of work that only quotas limit: each visit has its units at once."""

    starts_s: Floats
    """By visit; infinite if its quotas never give what it needs."""
    lacked: Counts
    """By visit: the limit that it waited for; -1: none."""
    claims: Claims
    """What the visits take."""


class SimulationInput:
    """Open batches, their requests in EBF order, their visits numbered in that order (so a number is its own key).

    O(n log n) to create, 0.12 us a visit with 16,000 requests and 0.17 us with 100,000.

    Args:
        batches: open together; their times are on one clock.
        strictness: of the timeout-aware rule (`simulate`).
        supply: quotas at the beginning of that clock.

    A visit is not late if it starts no later than with unlimited units: no units would let its quotas give earlier.
    With quotas one more simulation, of unlimited units.

    Raises:
        ValueError: the requests do not have one row of times for each stage.
    """

    def __init__(self, batches: Sequence[ExpectedBatch], strictness: float, supply: Supply = UNLIMITED) -> None:
        if any(len(batch.requests.executions_s) != len(batch.stages) for batch in batches):
            raise ValueError("a record needs one row of execution times for each stage of its workflow")
        self.batches = tuple(batches)
        self._supply = supply
        self.pools = tuple(sorted({stage.drawn_from for batch in batches for stage in batch.stages}))
        rows = _rows(self.batches)
        reached = ~np.isnan(rows.lasts.T)
        took = np.where(reached.T, rows.lasts, 0.0)
        counts = np.count_nonzero(reached, axis=1)
        first = np.cumsum(counts) - counts
        self.stage: Counts = np.nonzero(reached)[1]
        """Stage of each visit."""
        self.earliest_s: Floats = np.cumsum(np.vstack([rows.ready, took]), axis=0)[:-1].T[reached]
        """By visit: its start without any queueing, added up as list scheduling does, to the last bit."""
        owner = np.repeat(rows.owner, counts)
        steps = (owner, self.stage)
        stages = [batch.stages for batch in batches]
        to_come = (took.sum(axis=0) - (np.cumsum(took, axis=0) - took)).T[reached]
        visits = np.zeros(len(owner), VISIT)
        visits["lasts_s"] = rows.lasts.T[reached]
        visits["limit_s"] = _latest(self.batches)[owner] - np.maximum(
            to_come, strictness * _table(stages, _timeouts_from)[steps]
        )
        visits["key"] = np.arange(len(visits))
        visits["pool"] = _table(stages, lambda some: [self.pools.index(step.drawn_from) for step in some])[steps]
        visits["units"] = _table(stages, lambda some: [step.units for step in some])[steps]
        visits["owner"] = owner
        visits["final"][first + counts - 1] = 1
        self.visits: Records = visits
        self.complete = self._schedule_input(visits, first[~rows.running], first[~rows.running], first[rows.running])
        self.request: Counts = np.repeat(rows.number, counts)
        """Position in its batch of each visit's request."""
        self.unlimited: UnlimitedUnits | None = None
        """Schedule with unlimited units; None if no visit takes from a limited quota."""
        claims = claims_of(stages, supply, steps, visits["pool"]) if supply else None
        if claims is not None:
            self._add(claims)

    def _add(self, claims: Claims) -> None:
        """Add what the visits take from quotas."""
        visits, complete = self.visits, self.complete._replace(claims=claims)
        unlimited = np.full(len(self.pools), visits["units"].sum(), np.int64)
        starts, _, _, lacked = run_with_quotas(visits, complete[1:5], claims.columns, unlimited, math.inf)
        self.complete, self.unlimited = complete, UnlimitedUnits(starts, lacked, claims)
        known = np.isfinite(starts)
        visits["limit_s"][known] = np.maximum(visits["limit_s"][known], starts[known] + TOLERANCE_S)

    def _schedule_input(self, visits: Records, firsts: Counts, numbers: Counts, under_way: Counts) -> ScheduleInput:
        """Work of some visits; `firsts` (numbered `numbers` here) are the first visits of future requests."""
        ready = self.earliest_s[firsts]
        order = np.argsort(ready, kind="stable")
        begins = float(self.earliest_s.min(initial=math.inf)) if len(self.earliest_s) else 0.0
        return ScheduleInput(visits, ready[order], numbers[order], under_way, begins)

    def without(self, pools: frozenset[int]) -> ScheduleInput:
        """Return the remaining work if each visit of these pools can start at once. `spared` returns the pools for
        which this is valid.
        """
        gone = self._drawn_from(pools)
        begun = np.zeros(len(gone), bool)
        begun[self.complete.under_way] = True
        first = np.ones(len(gone), bool)
        first[1:] = (self.visits["final"][:-1] == 1) | gone[:-1]
        kept = ~gone
        numbers = np.cumsum(kept) - 1
        firsts = np.flatnonzero(kept & first & ~begun)
        return self._schedule_input(self.visits[kept], firsts, numbers[firsts], numbers[kept & begun])

    def _drawn_from(self, pools: frozenset[int]) -> Flags:
        """Flag of each visit: its units come from one of the pools."""
        among = np.zeros(len(self.pools), bool)
        among[list(pools)] = True
        found: Flags = among[self.visits["pool"]]
        return found

    def spared(self, pools: frozenset[int]) -> frozenset[int]:
        """Return those of the pools whose visits follow only visits of these pools: with enough units they never queue.

        Excludes pools in which a visit ends at its start and another follows. In list scheduling, other work that takes
        units at that moment precedes the following visit; without the pool it would not. None if visits wait for
        quotas.
        """
        place = self.visits["pool"]
        at_once = self.earliest_s + self.visits["lasts_s"] == self.earliest_s
        if self.unlimited is not None:
            return frozenset()
        pools -= set(place[at_once & (self.visits["final"] == 0)].tolist())
        follows = np.flatnonzero(self.visits["final"][:-1] == 0) + 1
        while True:
            fed = follows[~self._drawn_from(pools)[follows - 1]]
            fewer = pools - set(place[fed].tolist())
            if fewer == pools:
                return pools
            pools = fewer

    def bound(self, pool: int) -> int:
        """Lower bound of the units of a feasible allocation.

        A waiting request may need every stage of its workflow, whatever is expected of it (Algorithm 1 begins at one
        worker). The widest visit must fit. And for every t, the work that starts after t even without queueing must fit
        between t and the last T + D. Running work has its units in any case. A stage whose quotas never give what it
        needs is not counted.
        """
        mine = self.visits["pool"] == pool
        mine[self.complete.under_way] = False
        name = self.pools[pool]
        waiting = [stage for batch in self.batches if batch.requests.size for stage in batch.stages]
        waiting = [stage for stage in waiting if stage.drawn_from == name]
        waiting = [one for one in waiting if not one.quotas or granted_in_s(self._supply, one.quotas) < math.inf]
        least = max((stage.units for stage in waiting), default=0)
        if not mine.any():
            return least
        starts, units = self.earliest_s[mine], self.visits["units"][mine]
        order = np.argsort(-starts)
        work = np.cumsum((self.visits["lasts_s"][mine] * units)[order])
        latest = float(_latest(self.batches).max())
        if self.unlimited is not None:
            ends = self.unlimited.starts_s + self.visits["lasts_s"]
            latest = max(latest, float(ends[np.isfinite(ends)].max(initial=-math.inf)))
        room = latest - starts[order]
        asked = float((work / np.maximum(room, TOLERANCE_S)).max())
        return max(least, int(units.max()), math.ceil(asked - TOLERANCE_S))

    def most(self, pool: int) -> int:
        """Most units in use at once without any queueing; all if visits wait for quotas, which may gather them."""
        mine = self.visits["pool"] == pool
        if self.unlimited is not None:
            return int(self.visits["units"][mine].sum())
        starts = self.earliest_s[mine]
        return peak(starts, starts + self.visits["lasts_s"][mine], self.visits["units"][mine])

    def unit_cost(self, pool: int) -> float:
        """Cost per unit of the most expensive worker."""
        stages = (stage for batch in self.batches for stage in batch.stages if stage.drawn_from == self.pools[pool])
        return max(stage.worker_cost / max(1, stage.units) for stage in stages)


def peak(starts: Floats, ends: Floats, units: Counts | None = None) -> int:
    """Most visits, or units of theirs, in use at once.

    At one moment, ends precede starts, except for visits that start and end at that moment.
    """
    running = np.isfinite(starts)
    starts, ends = starts[running], ends[running]
    ends = np.where(ends > starts, ends, np.nextafter(ends, np.inf))
    if units is not None and (units != 1).any():
        starts, ends = np.repeat(starts, units[running]), np.repeat(ends, units[running])
    return most_at_once(np.sort(starts), np.sort(ends))


class _Rows(NamedTuple):
    """One entry for each request with work left, in the dispatcher's order."""

    owner: Counts
    ready: Floats
    lasts: Floats
    """(stages, requests)"""
    running: Flags
    number: Counts
    """Position in its batch."""


def _rows(batches: Sequence[ExpectedBatch]) -> _Rows:
    """Rows in `EbfKey` order: T, priority (none here) and arrival id. Sorting by columns gives the same order."""
    asks = [batch.requests for batch in batches]
    owner = np.repeat(np.arange(len(asks)), [one.size for one in asks])
    lasts = np.full((max((len(batch.stages) for batch in batches), default=0), len(owner)), np.nan)
    begin = 0
    for one in asks:
        lasts[: len(one.executions_s), begin : begin + one.size] = one.executions_s
        begin += one.size
    ready = np.concatenate([np.empty(0), *(one.ready_s for one in asks)])
    running = np.concatenate([np.empty(0, bool), *(one.running for one in asks)])
    order = _order(batches)
    order = order[~np.isnan(lasts).all(axis=0)[order]]
    number = np.concatenate([np.empty(0, np.int64), *(np.arange(one.size) for one in asks)])
    return _Rows(owner[order], ready[order], lasts[:, order], running[order], number[order])


def _order(batches: Sequence[ExpectedBatch]) -> Counts:
    """Order by T, then arrival, then position in the batch. Only batches with equal T are mixed. The requests of the
    others are nearly sorted already, so a stable sort is fast.
    """
    sizes = [batch.requests.size for batch in batches]
    begins = np.cumsum([0, *sizes])
    order = [np.empty(0, np.int64)]
    by_completion = sorted(range(len(batches)), key=lambda number: batches[number].order_s)
    for _, group in groupby(by_completion, key=lambda number: batches[number].order_s):
        mixed = list(group)
        numbers = np.concatenate([np.arange(begins[number], begins[number + 1]) for number in mixed])
        place = np.concatenate([np.arange(sizes[number]) for number in mixed])
        arrival = np.round(np.concatenate([batches[number].requests.arrivals_s for number in mixed]) * 1e6)
        by_arrival = np.argsort(arrival, kind="stable") if len(mixed) == 1 else np.lexsort((place, arrival))
        order.append(numbers[by_arrival])
    return np.concatenate(order)


def _latest(batches: Sequence[ExpectedBatch]) -> Floats:
    """By batch: T + D."""
    return np.array([batch.completion_s + batch.max_extra_delay_s for batch in batches]) + TOLERANCE_S


def _timeouts_from(stages: Sequence[Stage]) -> list[float]:
    """By stage: the sum of its timeout and of those after it."""
    return [math.fsum(stage.timeout_s for stage in stages[place:]) for place in range(len(stages))]


def _table(stages: Sequence[Sequence[Stage]], column: Callable[[Sequence[Stage]], Sequence[float]]) -> Floats:
    """(batches, stages): a figure of each stage; 0 if a workflow is shorter."""
    table = np.zeros((len(stages), max(map(len, stages), default=0)))
    for number, steps in enumerate(stages):
        table[number, : len(steps)] = column(steps)
    return table
