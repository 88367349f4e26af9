"""SIMULATE of DistRS (§5.1 Algorithm 1, §5.2): what a number of units would have made of known batches.

Virtual list scheduling. Each stage of a request draws units from one pool; stages may share a pool. Whenever units
are free the first waiting request in EBF order takes them (with one batch that is FCFS by arrival); a head that does
not fit waits, and nothing passes it. The real dispatcher may backfill there, so this is the cautious side.

A *visit* is one stage of one request. Visits are numbered request by request in EBF order, so the order of numbers is
the order of service, queues are heaps of plain integers, and the visit after `v` in the same request is `v + 1`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.ebf import EbfKey
from shared.policy.workload import ExpectedBatch

Floats = NDArray[np.float64]

TOLERANCE_S = 1e-6
"""Delays below a microsecond are rounding, not queueing."""


class Violation(NamedTuple):
    """Why an allocation does not do: the first request that queues too long."""

    batch: str
    stage: str
    rule: Literal["delay", "timeout"]
    """`delay`: the batch is late by its recorded times; `timeout`: it would be, did the request last its timeouts."""
    late_s: float
    """Beyond T + D."""


@dataclass(frozen=True)
class Outcome:
    """What an allocation leads to."""

    violation: Violation | None
    extra_delay_s: Mapping[str, float]
    """d by batch; infinite where a stage can never run."""
    peak_units: Mapping[str, int]
    """Most units in use at once, by pool."""
    peak_workers: Mapping[tuple[str, str], int]
    """Most requests executing at once by (batch, stage): N_j of Algorithm 1 as it was used."""

    @property
    def feasible(self) -> bool:
        return self.violation is None


class Load:
    """Everything about the batches that does not depend on the number of units; made once, simulated often.

    Arrays by visit, in the numbering of the module's docstring. O(n log n) to make, about 5 us a visit.
    """

    def __init__(self, batches: Sequence[ExpectedBatch], strictness: float) -> None:
        if any(len(batch.record.executions_s) != len(batch.stages) for batch in batches):
            raise ValueError("a record needs one row of execution times for each stage of its workflow")
        self.batches = tuple(batches)
        self.pools = tuple(sorted({stage.drawn_from for batch in batches for stage in batch.stages}))
        place = {pool: number for number, pool in enumerate(self.pools)}
        self.pool: list[int] = []
        self.units: list[int] = []
        self.stage: list[int] = []
        self.owner: list[int] = []
        self.execution: list[float] = []
        self.zero_queue: list[float] = []
        """Start of the visit where nothing ever queues."""
        self.limit: list[float] = []
        """A visit that had to wait must have started by then."""
        self.last: list[bool] = []
        self.first: list[tuple[float, int]] = []
        """(arrival, first visit) of each request, by arrival."""
        for owner, index in self._in_ebf_order():
            self._append(owner, index, place, strictness)
        self.first.sort()

    def _in_ebf_order(self) -> list[tuple[int, int]]:
        """(batch, request) pairs in the dispatcher's order: the same key, sorted once."""
        keyed = [
            (EbfKey(batch.completion_s, 0.0, (round((batch.first_arrival_s + offset) * 1e6), index)), owner, index)
            for owner, batch in enumerate(self.batches)
            for index, offset in enumerate(batch.record.arrivals_s)
        ]
        return [(owner, index) for _, owner, index in sorted(keyed)]

    def _append(self, owner: int, index: int, place: Mapping[str, int], strictness: float) -> None:
        batch = self.batches[owner]
        latest = batch.completion_s + batch.max_extra_delay_s + TOLERANCE_S
        start = batch.first_arrival_s + batch.record.arrivals_s[index]
        lasts = [row[index] for row in batch.record.executions_s]
        reached = [number for number, seconds in enumerate(lasts) if not math.isnan(seconds)]
        if not reached:
            return
        self.first.append((start, len(self.pool)))
        timeouts_s = sum([stage.timeout_s for stage in batch.stages[reached[0] :]])
        rest = sum([lasts[number] for number in reached])
        for number in reached:
            stage = batch.stages[number]
            self.pool.append(place[stage.drawn_from])
            self.units.append(stage.units)
            self.stage.append(number)
            self.owner.append(owner)
            self.execution.append(lasts[number])
            self.zero_queue.append(start)
            self.limit.append(latest - max(rest, strictness * timeouts_s))
            self.last.append(number == reached[-1])
            start += lasts[number]
            rest -= lasts[number]
            timeouts_s -= stage.timeout_s

    def ready(self, visit: int, starts: Sequence[float]) -> float:
        """When a visit could have started: at its request's arrival, or when the visit before it ended."""
        if visit == 0 or self.last[visit - 1]:
            return self.zero_queue[visit]
        return starts[visit - 1] + self.execution[visit - 1]

    def least(self, pool: int) -> int:
        """Fewest units with which every visit of the pool can run at all."""
        return max((units for units, place in zip(self.units, self.pool, strict=True) if place == pool), default=0)

    def bound(self, pool: int) -> int:
        """A number of units below which no allocation is feasible: `least`, or what the work alone asks for.

        What starts after t even without queueing must fit between t and the last T + D, for every t.
        """
        mine = np.array(self.pool) == pool
        if not mine.any():
            return 0
        starts = np.array(self.zero_queue)[mine]
        order = np.argsort(-starts)
        work = np.cumsum((np.array(self.execution) * np.array(self.units))[mine][order])
        end = max(batch.completion_s + batch.max_extra_delay_s for batch in self.batches) + TOLERANCE_S
        return max(self.least(pool), math.ceil(float((work / (end - starts[order])).max()) - TOLERANCE_S))


def schedule(load: Load, capacity: Sequence[int], *, stop: bool) -> list[float] | None:
    """Start of every visit under list scheduling; infinite where it never starts.

    Args:
        load: what is to run.
        capacity: units by pool, in the order of `load.pools`.
        stop: give up at the first violation.

    Returns:
        The starts by visit, or None when `stop` and the allocation is not feasible.

    At each moment everything that ends or arrives is taken in first, then units go out in EBF order. O(n log n), about
    1.3 us a visit.
    """
    pools, units, lasts, limits, final = load.pool, load.units, load.execution, load.limit, load.last
    push, pop = heapq.heappush, heapq.heappop
    free = list(capacity)
    queues: list[list[int]] = [[] for _ in free]
    ends: list[tuple[float, int]] = []
    starts = [math.inf] * len(pools)
    arrivals = [*load.first, (math.inf, -1)]
    arrived, arrival = 0, arrivals[0][0]
    while True:
        now = ends[0][0] if ends and ends[0][0] < arrival else arrival
        if now == math.inf:
            return None if stop and any(queues) else starts
        while ends and ends[0][0] <= now:
            visit = pop(ends)[1]
            free[pools[visit]] += units[visit]
            if not final[visit]:
                push(queues[pools[visit + 1]], visit + 1)
        while arrival <= now:
            visit = arrivals[arrived][1]
            push(queues[pools[visit]], visit)
            arrived += 1
            arrival = arrivals[arrived][0]
        for pool, queue in enumerate(queues):
            while queue and free[pool] >= units[queue[0]]:
                visit = pop(queue)
                if stop and now > limits[visit] and now > load.ready(visit, starts) + TOLERANCE_S:
                    return None
                free[pool] -= units[visit]
                starts[visit] = now
                push(ends, (now + lasts[visit], visit))


def peak(starts: Floats, ends: Floats, units: NDArray[np.int64]) -> int:
    """Most units in use at once. What ends at a moment is gone before what starts then, unless it started then too."""
    running = np.isfinite(starts)
    starts, ends, units = starts[running], ends[running], units[running]
    times = np.concatenate([starts, ends])
    turn = np.concatenate([np.ones(len(starts)), np.where(ends > starts, 0, 2)])
    change = np.concatenate([units, -units])[np.lexsort((turn, times))]
    return int(np.cumsum(change).max(initial=0))


def outcome(load: Load, starts: Sequence[float]) -> Outcome:
    """What a schedule means for its batches."""
    begun, owner, pool = np.array(starts), np.array(load.owner), np.array(load.pool)
    stage, units = np.array(load.stage), np.array(load.units, dtype=np.int64)
    ends = begun + np.array(load.execution)
    delays: dict[str, float] = {}
    workers: dict[tuple[str, str], int] = {}
    for number, batch in enumerate(load.batches):
        mine = owner == number
        late = float(ends[mine].max(initial=-math.inf)) - batch.completion_s
        delays[batch.batch] = late if late > TOLERANCE_S else 0.0
        for place, step in enumerate(batch.stages):
            chosen = mine & (stage == place)
            workers[batch.batch, step.name] = peak(begun[chosen], ends[chosen], np.ones_like(units[chosen]))
    used = {name: peak(begun[pool == at], ends[pool == at], units[pool == at]) for at, name in enumerate(load.pools)}
    return Outcome(_first_violation(load, begun, ends), delays, used, workers)


def _first_violation(load: Load, starts: Floats, ends: Floats) -> Violation | None:
    follows = np.concatenate([[False], ~np.array(load.last, dtype=bool)[:-1]]) if len(starts) else np.array([], bool)
    ready = np.where(follows, np.concatenate([[0.0], ends[:-1]])[: len(starts)], np.array(load.zero_queue))
    limits = np.array(load.limit)
    broken = np.flatnonzero((starts > limits) & ~(starts <= ready + TOLERANCE_S))
    if not len(broken):
        return None
    first = int(broken[np.argmin(starts[broken])])
    batch = load.batches[load.owner[first]]
    latest = batch.completion_s + batch.max_extra_delay_s
    last = first + load.last[first:].index(True)
    by_record = float(starts[first]) + math.fsum(load.execution[first : last + 1]) - latest
    name = batch.stages[load.stage[first]].name
    if by_record > TOLERANCE_S:
        return Violation(batch.batch, name, "delay", by_record)
    return Violation(batch.batch, name, "timeout", float(starts[first] - limits[first]) + TOLERANCE_S)


def simulate(batches: Sequence[ExpectedBatch], units: Mapping[str, int], *, strictness: float = 1.0) -> Outcome:
    """Run batches on a number of units and say what becomes of them (SIMULATE, to its end).

    Args:
        batches: open together; their times are on one clock.
        units: by pool; a pool that is not named has none.
        strictness: of the timeout-aware rule. A request that has to wait at stage k until ts breaks it when
            ts + strictness * (T_k + ... + T_M) > T + D. 1 is the paper's, 0 leaves the recorded times alone to decide.

    Raises:
        ValueError: a record has not one row for each stage.
    """
    load = Load(batches, strictness)
    starts = schedule(load, [units.get(pool, 0) for pool in load.pools], stop=False)
    assert starts is not None, "only a schedule that may stop early can be cut short"
    return outcome(load, starts)
