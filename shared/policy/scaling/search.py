"""Search for the fewest units: the sequential binary search of DistRS (§5.1 Algorithm 1) over SIMULATE, then trades.

The paper searches workers of a stage. Treadle's targets count units of a pool, because stages may share cores: two
stages that never run at the same time need the cores once. So the search runs over pools; if every stage has its own
pool, both are the same.

List scheduling is not monotone: if queues feed queues or batches share one, an additional unit can lengthen a batch
(Graham's anomalies). The search relies on monotonicity only for speed. Its result was simulated and is feasible, and in
the end no single pool can give up a unit.

The sequential search makes the most expensive pool as small as possible with all others at their ceilings, however much
the others must hold for it. So pools are traded afterwards: one unit more of one pool, if that frees units of more
value in another (the paper leaves this gap: "cannot theoretically guarantee the global optimum").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.policy.scaling.quota_supply import UNLIMITED, Supply
from shared.policy.scaling.simulation import (
    Outcome,
    Schedule,
    Violation,
    feasible_schedule,
    outcome,
    schedule,
    simulate,
)
from shared.policy.scaling.simulation_input import ScheduleInput, SimulationInput
from shared.policy.scaling.workload import UNREACHED, BatchRecord, ExpectedBatch, Requests, Stage, repeating

__all__ = [
    "UNREACHED",
    "BatchRecord",
    "ExpectedBatch",
    "Outcome",
    "Plan",
    "Requests",
    "Stage",
    "Violation",
    "repeating",
    "search",
    "simulate",
]

MOST_OFFERS = 12
"""Trades tried between two pools, each twice as large as the one before."""
TRADED_VISITS = 500_000
"""Most visits simulated for trades, in total: some 50 ms, for inputs of any size ..."""
LEAST_TRIALS = 12
"""... but at least this many simulations."""
ROUGHLY = 16
"""Number of parts of a range, for a rough search of the units that a pool could lose in a trade."""


@dataclass(frozen=True)
class Plan:
    """Fewest units found."""

    units: Mapping[str, int]
    """By pool."""
    outcome: Outcome
    """Outcome of these units. Not feasible: even the ceilings are not enough, and `units` are the ceilings."""
    simulations: int
    """Number of SIMULATE runs."""
    sequential: Mapping[str, int]
    """By pool: result of Algorithm 1 alone, before trading."""
    inputs: SimulationInput = field(repr=False, compare=False)
    """Input that was searched for."""
    schedule: Schedule = field(repr=False, compare=False)
    """Schedule of the input on `units`."""


def search(
    batches: Sequence[ExpectedBatch],
    ceilings: Mapping[str, int],
    *,
    strictness: float = 1.0,
    trade: bool = True,
    near: Mapping[str, int] | None = None,
    supply: Supply = UNLIMITED,
) -> Plan:
    """Return the fewest units of each pool with which no batch is later than T + D, most expensive pool first
    (Algorithm 1).

    Args:
        batches: open together; their times are on one clock.
        ceilings: most units a pool can hold; a pool that is not named has none.
        strictness: of the timeout-aware rule (`simulate`).
        trade: continue where the paper stops: exchange units of one pool for more expensive ones of another.
        near: first guess by pool. The result of the last search saves a third of the simulations of the next.
        supply: quotas at the beginning of that clock (`simulate`).

    Returns:
        A feasible plan in which no single pool can lose a unit; or the ceilings, with the violation that remains.

    Raises:
        ValueError: the requests do not have one row of times for each stage.

    About log2(most used at once) simulations a pool (docs/performance.md). Without a useful trade, 16,000 requests of
    two stages in six batches take 34 ms and 23 simulations, 100,000 take 0.31 s and 27 (`search_load`). With a useful
    trade (without the timeout-aware rule) they take 0.1 s and 0.75 s, 58 simulations each, and the plan is 1 to 6 %
    cheaper.
    """
    inputs = SimulationInput(batches, strictness, supply)
    at_most = [ceilings.get(pool, 0) for pool in inputs.pools]
    trials = _Trials(inputs, at_most)
    if not trials.feasible(at_most):
        return _plan(trials, at_most, at_most)
    costs = [inputs.unit_cost(pool) for pool in range(len(inputs.pools))]
    order = sorted(range(len(inputs.pools)), key=lambda pool: (-costs[pool], inputs.pools[pool]))
    units = at_most
    for pool in order:
        units = _fewest(trials, units, pool, (near or {}).get(inputs.pools[pool]))
    sequential = units = _slimmed(trials, units, order)
    if trade:
        trials.most = trials.count + max(LEAST_TRIALS, TRADED_VISITS // max(1, len(inputs.visits)))
        units = _traded(trials, units, at_most, costs, order)
    return _plan(trials, units, sequential)


def _plan(trials: _Trials, units: Sequence[int], sequential: Sequence[int]) -> Plan:
    inputs, whole = trials.inputs, trials.schedule(units)
    return Plan(_named(inputs, units), outcome(inputs, whole), trials.count, _named(inputs, sequential), inputs, whole)


def _named(inputs: SimulationInput, units: Sequence[int]) -> dict[str, int]:
    return dict(zip(inputs.pools, units, strict=True))


class _Trials:
    """Simulations made so far: none is run twice. Keeps one schedule, the last feasible one.

    A simulation leaves out pools that have room for all their visits at once, if only such pools come before them.
    Their visits arrive at the next pool at known times.
    """

    def __init__(self, inputs: SimulationInput, ceilings: Sequence[int]) -> None:
        self.inputs = inputs
        self.bounds = [min(inputs.bound(pool), most) for pool, most in enumerate(ceilings)]
        """Never above the ceilings: whether these are enough is decided by a simulation."""
        self.count = 0
        self.most = math.inf
        """Number of simulations after which `hopeful` uses only known results."""
        self._most = [inputs.most(pool) for pool in range(len(inputs.pools))]
        self._known: dict[tuple[int, ...], bool] = {}
        self._last: tuple[tuple[int, ...], ScheduleInput, Schedule] | None = None
        self._sources: dict[frozenset[int], ScheduleInput] = {frozenset(): inputs.complete}

    def feasible(self, units: Sequence[int]) -> bool:
        key = tuple(units)
        if any(count < least for count, least in zip(key, self.bounds, strict=True)):
            return False
        if key not in self._known:
            self.count += 1
            source = self._source(key)
            found = feasible_schedule(source, key)
            self._known[key] = found is not None
            if found is not None:
                self._last = (key, source, found)
        return self._known[key]

    def hopeful(self, units: Sequence[int]) -> bool:
        """Return whether it is feasible. If an allocation with more units of each pool was not feasible, it is assumed
        not to be, without a simulation. This ignores true anomalies.
        """
        key = tuple(units)
        if key not in self._known and self.count >= self.most:
            return False
        refused = (more for more, does in self._known.items() if not does)
        return not any(all(map(int.__le__, key, more)) for more in refused) and self.feasible(units)

    def schedule(self, units: Sequence[int]) -> Schedule:
        """Schedule of all visits, with no pool left out."""
        if self._last is not None and self._last[0] == tuple(units) and self._last[1] is self.inputs.complete:
            return self._last[2]
        self.count += 1
        return schedule(self.inputs.complete, units)

    def _used(self, units: Sequence[int]) -> Sequence[int]:
        """Most units in use at once of a feasible allocation, by pool; 0 for pools left out."""
        if self._last is None or self._last[0] != tuple(units):
            self.count += 1
            source = self._source(units)
            self._last = (tuple(units), source, schedule(source, units))
        return self._last[2].used

    def _source(self, units: Sequence[int]) -> ScheduleInput:
        roomy = frozenset(pool for pool, count in enumerate(units) if count >= self._most[pool])
        if roomy not in self._sources:
            spared = self.inputs.spared(roomy)
            self._sources[roomy] = self.inputs.without(spared) if spared else self.inputs.complete
        return self._sources[roomy]

    def trimmed(self, units: Sequence[int], pool: int) -> list[int]:
        """Remove the units that the pool never uses. The schedule does not change, so it is not run again."""
        used = min(self._used(units)[pool] or self._most[pool], units[pool])
        trimmed = _with(units, pool, max(used, self.bounds[pool]))
        self._known[tuple(trimmed)] = True
        if self._last is not None:
            self._last = (tuple(trimmed), *self._last[1:])
        return trimmed


def _fewest(trials: _Trials, units: Sequence[int], pool: int, near: int | None = None) -> list[int]:
    """Binary search of one pool, with the others fixed. `units` and the result are feasible.

    `near`: first guess, from which the steps double.
    """
    best, low = trials.trimmed(units, pool), trials.bounds[pool]
    step = max(1, near // 16) if near is not None else 0
    while near is not None and low <= near < best[pool]:
        tried = _with(best, pool, near)
        if trials.feasible(tried):
            best = trials.trimmed(tried, pool)
            near = best[pool] - step
        else:
            low = near + 1
            near += step
        step *= 2
    return _fewer(best, pool, trials, trials.feasible, 0, low)


def _fewer(
    units: Sequence[int],
    pool: int,
    trials: _Trials,
    feasible: Callable[[Sequence[int]], bool],
    parts: int,
    low: int = 0,
) -> list[int]:
    """Binary search from `low` on, until the rest is a part of the initial distance; 0 parts: to the end."""
    best = trials.trimmed(units, pool)
    low = max(low, trials.bounds[pool])
    near = (best[pool] - low) // parts if parts else 0
    while best[pool] - low > near:
        tried = _with(best, pool, (low + best[pool]) // 2)
        if feasible(tried):
            best = trials.trimmed(tried, pool)
        else:
            low = tried[pool] + 1
    return best


def _slimmed(trials: _Trials, units: Sequence[int], order: Sequence[int]) -> list[int]:
    """Remove single units while the allocation stays feasible."""
    slim = list(units)
    while True:
        fitting = (less for pool in order if trials.feasible(less := _with(slim, pool, slim[pool] - 1)))
        following = next(fitting, None)
        if following is None:
            return slim
        slim = following


def _traded(
    trials: _Trials, units: Sequence[int], ceilings: Sequence[int], costs: Sequence[float], order: Sequence[int]
) -> list[int]:
    """Give a pool more units if a pool searched after it can then lose units of more value; repeat while that pays.

    A pool searched before another was made as small as possible with the other at its ceiling. So it cannot lose units.
    """
    best = list(units)
    pairs = [(more, less) for place, more in enumerate(order) for less in order[place + 1 :] if costs[less] > 0]
    for more, less in pairs:
        found = _exchanged(trials, best, _Exchange(more, less, costs[more] / costs[less], ceilings))
        if found is not None:
            for pool in (less, more):
                found = _fewest(trials, found, pool)
            return _traded(trials, _slimmed(trials, found, order), ceilings, costs, order)
    return best


class _Exchange(NamedTuple):
    """Two pools, and the price of a unit of the first in units of the second."""

    more: int
    less: int
    price: float
    ceilings: Sequence[int]

    def offer(self, best: Sequence[int], wanted: int) -> list[int]:
        """Offer this much of `more`, with the most of `less` that is cheaper than the best."""
        count = min(wanted, self.ceilings[self.more])
        rest = math.ceil(best[self.less] - (count - best[self.more]) * self.price - 1e-9) - 1
        return _with(_with(best, self.more, count), self.less, min(rest, self.ceilings[self.less]))


def _exchanged(trials: _Trials, units: Sequence[int], exchange: _Exchange) -> list[int] | None:
    """Return a cheaper allocation, or None. First with increases that double, so that a wide valley between two good
    allocations is crossed, then around the best with steps that halve.

    If a pool at its ceiling does not free what one additional unit must free, fewer units will not either. So the least
    that the other pool needs is found first, and nothing below it is tried.
    """
    more, less, most = exchange.more, exchange.less, exchange.ceilings[exchange.more]
    widest = _with(exchange.offer(units, units[more] + 1), more, most)
    if units[more] >= most or not trials.feasible(widest):
        return None
    _fewer(widest, less, trials, trials.hopeful, ROUGHLY)
    best, step = list(units), 1
    while step < 2**MOST_OFFERS:
        for count in (units[more] + step, units[more] - step):
            best = _cheaper(trials, best, count, exchange)
        step *= 2
    step = abs(best[more] - units[more]) // 2
    while step:
        for count in (best[more] - step, best[more] + step):
            best = _cheaper(trials, best, count, exchange)
        step //= 2
    return best if best != units else None


def _cheaper(trials: _Trials, best: list[int], count: int, exchange: _Exchange) -> list[int]:
    """Return the allocation with this much of a pool if that is cheaper, else the best so far."""
    offer = exchange.offer(best, count)
    return _fewer(offer, exchange.less, trials, trials.hopeful, ROUGHLY) if trials.hopeful(offer) else best


def _with(units: Sequence[int], pool: int, count: int) -> list[int]:
    changed = list(units)
    changed[pool] = count
    return changed
