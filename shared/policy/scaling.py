"""How few units do: the sequential binary search of DistRS (§5.1 Algorithm 1) over SIMULATE.

The paper searches workers of a stage. Treadle's targets count units of a pool, because stages may share cores: two
stages that never run at the same time need the cores once. So the search runs over pools; where every stage has a pool
of its own the two are the same.

List scheduling is not monotone: once queues feed queues, one unit more can lengthen a batch (Graham's anomalies). The
search relies on it only to be quick. What it returns was simulated and is feasible, and in the end no single pool can
give up a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shared.policy.simulation import Load, Outcome, Violation, outcome, peak, schedule, simulate
from shared.policy.workload import UNREACHED, BatchRecord, ExpectedBatch, Stage

__all__ = [
    "UNREACHED",
    "BatchRecord",
    "ExpectedBatch",
    "Outcome",
    "Plan",
    "Stage",
    "Violation",
    "search",
    "simulate",
]


@dataclass(frozen=True)
class Plan:
    """The fewest units found."""

    units: Mapping[str, int]
    """By pool."""
    outcome: Outcome
    """What they lead to. Not feasible: even the ceilings are not enough, and `units` are the ceilings."""
    simulations: int
    """How often SIMULATE ran."""


def search(batches: Sequence[ExpectedBatch], ceilings: Mapping[str, int], *, strictness: float = 1.0) -> Plan:
    """Fewest units of each pool with which no batch is later than T + D, the dearest pool first (Algorithm 1).

    Args:
        batches: open together; their times are on one clock.
        ceilings: most units a pool can hold; a pool that is not named has none.
        strictness: of the timeout-aware rule (`simulate`).

    Returns:
        A feasible plan in which no single pool can lose a unit; or the ceilings, with the violation that remains.

    Raises:
        ValueError: a record has not one row for each stage.

    About log2(most used at once) simulations a pool: 2,048 requests of two stages take some 35 ms.
    """
    load = Load(batches, strictness)
    at_most = [ceilings.get(pool, 0) for pool in load.pools]
    tried = _Trials(load)
    if not tried.feasible(at_most):
        starts = schedule(load, at_most, stop=False)
        assert starts is not None, "only a schedule that may stop early can be cut short"
        return Plan(dict(zip(load.pools, at_most, strict=True)), outcome(load, starts), tried.count + 1)
    units = at_most
    order = sorted(range(len(load.pools)), key=lambda pool: (-_unit_cost(load, pool), load.pools[pool]))
    for pool in order:
        units = _fewest(tried, units, pool)
    slimmer = True
    while slimmer:
        slimmer = False
        for pool in order:
            less = _with(units, pool, units[pool] - 1)
            if less[pool] >= load.bound(pool) and tried.feasible(less):
                units, slimmer = less, True
    starts = tried.starts(units)
    return Plan(dict(zip(load.pools, units, strict=True)), outcome(load, starts), tried.count)


class _Trials:
    """Simulations made so far: none is run twice."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._known: dict[tuple[int, ...], list[float] | None] = {}
        self._most = [self._used(load.zero_queue, pool) for pool in range(len(load.pools))]
        self.count = 0

    def feasible(self, units: Sequence[int]) -> bool:
        key = tuple(units)
        if key not in self._known and not self._plenty(units):
            self.count += 1
            self._known[key] = schedule(self.load, units, stop=True)
        return self._known[key] is not None

    def _plenty(self, units: Sequence[int]) -> bool:
        """Where there is enough for everything to start at once, that is the schedule, and need not be run."""
        if any(count < most for count, most in zip(units, self._most, strict=True)):
            return False
        self._known[tuple(units)] = self.load.zero_queue
        return True

    def starts(self, units: Sequence[int]) -> list[float]:
        known = self._known[tuple(units)]
        assert known is not None, "asked for the schedule of an allocation that is not feasible"
        return known

    def trimmed(self, units: Sequence[int], pool: int) -> list[int]:
        """The allocation without what the pool never uses: the schedule stays as it is, so it is not run again."""
        trimmed = _with(units, pool, min(units[pool], self._used(self.starts(units), pool)))
        self._known.setdefault(tuple(trimmed), self.starts(units))
        return trimmed

    def _used(self, schedule: Sequence[float], pool: int) -> int:
        mine = np.array(self.load.pool) == pool
        starts = np.array(schedule)[mine]
        lasts, drawn = np.array(self.load.execution)[mine], np.array(self.load.units, dtype=np.int64)[mine]
        return peak(starts, starts + lasts, drawn)


def _fewest(tried: _Trials, units: Sequence[int], pool: int) -> list[int]:
    """Binary search of one pool, the others as they are; `units` is feasible, and so is what comes back."""
    best = tried.trimmed(units, pool)
    low = tried.load.bound(pool)
    while low < best[pool]:
        middle = (low + best[pool]) // 2
        if tried.feasible(_with(units, pool, middle)):
            best = _with(units, pool, middle)
        else:
            low = middle + 1
    return best


def _with(units: Sequence[int], pool: int, count: int) -> list[int]:
    changed = list(units)
    changed[pool] = count
    return changed


def _unit_cost(load: Load, pool: int) -> float:
    """The dearest worker's cost a unit."""
    stages = (stage for batch in load.batches for stage in batch.stages if stage.drawn_from == load.pools[pool])
    return max(stage.worker_cost / max(1, stage.units) for stage in stages)
