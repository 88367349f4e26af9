"""List scheduling without stops, for SIMULATE only: a search runs it some twenty times.

The rules are those of `list_scheduling`, which can also stop and continue while units are added or removed. Here a
visit's number is its key and no units change, so less state is written: 0.08 us a visit with 16,000 requests and 0.1 us
with 100,000, half of the time of `list_scheduling`.

Work that takes from quotas has a loop of its own. There the visits of a pool wait in one lane for each set of quotas. A
visit starts when its units and all its quotas are free together. At each moment the lanes are served in the order of
their heads. A head that lacks units keeps the free units of its pool from later heads, and one that lacks a quota keeps
what is free of that quota from them. The dispatcher lets later work pass if it does not delay the head, so this is
pessimistic.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shared.policy.model.compiling import compiled
from shared.policy.scaling.list_scheduling import TOLERANCE_S, VISIT, Counts, Floats, Records

_TOLERANCE_S: Final = TOLERANCE_S
_ROUNDING: Final = 1e-9
"""`quota_supply.ROUNDING`."""
_NONE: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
"""Indices into a heap are unsigned. For signed ones numba checks each for counting from the end, 1/7 of the time."""


def run_to_end(
    visits: Records, coming: tuple[Floats, Counts, Counts, float], capacity: Counts, enough_s: float
) -> tuple[Floats, Counts, float]:
    """Run the whole schedule, unless it is known before its end that it is not feasible.

    Args:
        visits: all visits, `VISIT`; the smaller number goes first.
        coming: arrivals, ascending; by arrival the request's first visit; running visits; the beginning.
        capacity: units by pool.
        enough_s: stop as soon as a visit starts this much beyond its limit; infinite: never.

    Returns:
        By visit its start, infinite if it never starts; by pool the most units in use at once; and the least time from
        the start of a visit that had to wait to its limit: infinite if none had to, below zero if one is late, minus
        infinity if one never starts.
    """
    starts = np.empty(len(visits))
    used = np.zeros(len(capacity), np.int64)
    slack = _simulate(visits, *coming, capacity, -enough_s, starts, used)
    return starts, used, float(slack)


def run_with_quotas(
    visits: Records,
    coming: tuple[Floats, Counts, Counts, float],
    claims: tuple[Counts, Counts, Floats, Counts, Floats, Floats, Floats],
    capacity: Counts,
    enough_s: float,
) -> tuple[Floats, Counts, float, Counts]:
    """Run the whole schedule of visits that take from quotas, as `run_to_end`.

    `claims`: `quota_claims.Claims.columns`. Running visits hold their amounts of concurrency, and have taken from rates
    before. Also returns by visit the limit that its lane lacked last if it waited or never starts; else -1.

    Each start costs O(lanes + limits).
    """
    starts, lacked = np.empty(len(visits)), np.full(len(visits), -1, np.int64)
    used = np.zeros(len(capacity), np.int64)
    slack = _simulate_quotas(visits, *coming, *claims, capacity, -enough_s, starts, used, lacked)
    return starts, used, float(slack), lacked


def most_at_once(starts_s: Floats, ends_s: Floats) -> int:
    """Most intervals with these starts and ends, each ascending, that overlap at once; ends precede starts."""
    return int(_most_at_once(starts_s, ends_s))


def warm() -> None:
    """Compile the loops of a search: seconds if nothing is cached on disk, else almost no time."""
    visits = np.zeros(1, VISIT)
    visits["units"] = visits["final"] = 1
    coming = np.zeros(1), np.zeros(1, np.int64), np.empty(0, np.int64), 0.0
    run_to_end(visits, coming, np.ones(1, np.int64), math.inf)
    zeros, ones = np.zeros(1, np.int64), np.ones(1)
    claims = (zeros, zeros, np.ones((1, 1)), zeros, ones, ones, np.zeros(1))
    run_with_quotas(visits, coming, claims, np.ones(1, np.int64), math.inf)
    most_at_once(np.zeros(1), np.ones(1))


@compiled
def _simulate(  # type: ignore[no-untyped-def]  # noqa: C901
    visits, arrivals_s, first_visits, under_way, begins_s, capacity, least_slack_s, starts, used
):
    """See `run_to_end`. For a waiting visit, `starts` holds the start of its wait."""
    count = len(visits)
    end_s, ending = np.empty(count), np.empty(count, np.uint32)  # heap of running visits
    queues, waiting = np.empty(len(capacity) * count, np.uint32), np.zeros(len(capacity), np.int64)
    free, now, slack, running, served = capacity.copy(), begins_s, np.inf, 0, 0
    for visit in under_way:
        starts[visit] = now
        free[visits[visit].pool] -= visits[visit].units
        _rise(end_s, ending, running, now + visits[visit].lasts_s, visit)
        running += 1
    for pool in range(len(capacity)):
        used[pool] = max(0, capacity[pool] - free[pool])
    arrival = arrivals_s[0] if len(arrivals_s) else np.inf
    while slack >= least_slack_s:
        for pool in range(len(capacity)):
            queue = pool * count
            while waiting[pool] and visits[queues[queue]].units <= free[pool]:
                visit = queues[queue]
                if now > starts[visit] + _TOLERANCE_S:
                    slack = min(slack, visits[visit].limit_s - now)
                waiting[pool] -= 1
                _pop(queues, queue, waiting[pool])
                free[pool] -= visits[visit].units
                used[pool] = max(used[pool], capacity[pool] - free[pool])
                starts[visit] = now
                _rise(end_s, ending, running, now + visits[visit].lasts_s, visit)
                running += 1
        now = min(arrival, end_s[0]) if running else arrival
        if now == np.inf:
            break
        while running and end_s[0] <= now:
            visit = ending[0]
            running -= 1
            _sink(end_s, ending, running)
            free[visits[visit].pool] += visits[visit].units
            if not visits[visit].final:
                visit += 1
                starts[visit] = now
                pool = visits[visit].pool
                _push(queues, pool * count, waiting[pool], visit)
                waiting[pool] += 1
        while arrival <= now:
            visit = first_visits[served]
            starts[visit] = now
            pool = visits[visit].pool
            _push(queues, pool * count, waiting[pool], visit)
            waiting[pool] += 1
            served += 1
            arrival = arrivals_s[served] if served < len(arrivals_s) else np.inf
    for pool in range(len(capacity)):
        for place in range(pool * count, pool * count + waiting[pool]):
            slack, visit = -np.inf, queues[place]
            starts[visit] = np.inf
            while not visits[visit].final:
                visit += 1
                starts[visit] = np.inf
    return slack


@compiled
def _simulate_quotas(  # type: ignore[no-untyped-def]  # noqa: C901
    visits, arrivals_s, first_visits, under_way, begins_s, lane_of, claim_of, amounts, quota, most, per_s, missing,
    capacity, least_slack_s, starts, used, lacked,
):  # fmt: skip
    """See `run_with_quotas`. For a waiting visit, `starts` holds the start of its wait."""
    count, lanes = len(visits), lane_of.max() + 1 if len(lane_of) else 0
    end_s, ending = np.empty(count), np.empty(count, np.uint32)  # heap of running visits
    queues, waiting = np.empty(lanes * count, np.uint32), np.zeros(lanes, np.int64)
    free, now, slack, running, served = capacity.copy(), begins_s, np.inf, 0, 0
    level, level_s = missing.copy(), np.zeros(len(most))  # of concurrency: the amount held
    blocked, short = np.zeros(lanes, np.bool_), np.full(lanes, -1)
    kept_units, kept_by = np.zeros(len(capacity), np.bool_), np.zeros(len(most), np.int64)
    for visit in under_way:
        starts[visit] = now
        free[visits[visit].pool] -= visits[visit].units
        for limit in range(len(most)):
            if per_s[limit] < 0:
                level[limit] += amounts[claim_of[visit], limit]
        _rise(end_s, ending, running, now + visits[visit].lasts_s, visit)
        running += 1
    for pool in range(len(capacity)):
        used[pool] = max(0, capacity[pool] - free[pool])
    arrival = arrivals_s[0] if len(arrivals_s) else np.inf
    while slack >= least_slack_s:
        refill = np.inf
        blocked[:] = False
        kept_units[:] = False
        kept_by[:] = 0
        while True:
            lane, visit = -1, 0
            for other in range(lanes):
                if waiting[other] and not blocked[other] and (lane < 0 or queues[other * count] < visit):
                    lane, visit = other, queues[other * count]
            if lane < 0:
                break
            lacks = -1
            for limit in range(len(most)):
                amount = amounts[claim_of[visit], limit]
                if amount <= 0:
                    continue
                if per_s[limit] > 0:
                    level[limit] = max(0.0, level[limit] - max(0.0, now - level_s[limit]) * per_s[limit])
                    level_s[limit] = now
                if kept_by[quota[limit]] and kept_by[quota[limit]] != lane + 1:
                    lacks = limit
                elif level[limit] + amount > most[limit] + _ROUNDING * max(1.0, most[limit]):
                    lacks, kept_by[quota[limit]] = limit, lane + 1
                    if per_s[limit] > 0 and amount <= most[limit] + _ROUNDING * max(1.0, most[limit]):
                        at = now + (level[limit] + amount - most[limit]) / per_s[limit]
                        refill = min(refill, max(at, np.nextafter(now, np.inf)))
            pool = visits[visit].pool
            if lacks >= 0:
                blocked[lane], short[lane] = True, lacks
                continue
            if kept_units[pool] or visits[visit].units > free[pool]:
                blocked[lane], kept_units[pool] = True, True
                continue
            if now > starts[visit] + _TOLERANCE_S:
                slack = min(slack, visits[visit].limit_s - now)
                lacked[visit] = short[lane]
            waiting[lane] -= 1
            _pop(queues, lane * count, waiting[lane])
            for limit in range(len(most)):
                level[limit] += amounts[claim_of[visit], limit]
            free[pool] -= visits[visit].units
            used[pool] = max(used[pool], capacity[pool] - free[pool])
            starts[visit] = now
            _rise(end_s, ending, running, now + visits[visit].lasts_s, visit)
            running += 1
        now = min(refill, min(arrival, end_s[0]) if running else arrival)
        if now == np.inf:
            break
        while running and end_s[0] <= now:
            visit = ending[0]
            running -= 1
            _sink(end_s, ending, running)
            free[visits[visit].pool] += visits[visit].units
            for limit in range(len(most)):
                if per_s[limit] < 0:
                    level[limit] = max(0.0, level[limit] - amounts[claim_of[visit], limit])
            if not visits[visit].final:
                visit += 1
                starts[visit] = now
                lane = lane_of[visit]
                _push(queues, lane * count, waiting[lane], visit)
                waiting[lane] += 1
        while arrival <= now:
            visit = first_visits[served]
            starts[visit] = now
            lane = lane_of[visit]
            _push(queues, lane * count, waiting[lane], visit)
            waiting[lane] += 1
            served += 1
            arrival = arrivals_s[served] if served < len(arrivals_s) else np.inf
    for lane in range(lanes):
        for place in range(lane * count, lane * count + waiting[lane]):
            slack, visit = -np.inf, queues[place]
            starts[visit], lacked[visit] = np.inf, short[lane]
            while not visits[visit].final:
                visit += 1
                starts[visit] = np.inf
    return slack


@compiled
def _push(queue, top, place, visit):  # type: ignore[no-untyped-def]
    """Move a visit up from an index of the heap that begins at `top`."""
    first, at = np.uint64(top), np.uint64(place)
    while at:
        above = (at - _ONE) >> _ONE
        if queue[first + above] < visit:
            break
        queue[first + at] = queue[first + above]
        at = above
    queue[first + at] = visit


@compiled
def _pop(queue, top, size):  # type: ignore[no-untyped-def]
    """Remove the first entry; `size` is the number that remain. The hole moves to the bottom, without unpredictable
    branches.
    """
    first, past = np.uint64(top), np.uint64(size)
    at, below = _NONE, _ONE
    while below + _ONE < past:
        below += np.uint64(queue[first + below + _ONE] < queue[first + below])
        queue[first + at] = queue[first + below]
        at, below = below, below + below + _ONE
    if below < past:
        queue[first + at] = queue[first + below]
        at = below
    _push(queue, first, at, queue[first + past])


@compiled
def _rise(end_s, ending, place, key, visit):  # type: ignore[no-untyped-def]
    """Move a visit up from an index of the heap of ends."""
    at = np.uint64(place)
    while at:
        above = (at - _ONE) >> _ONE
        if end_s[above] <= key:
            break
        end_s[at], ending[at] = end_s[above], ending[above]
        at = above
    end_s[at], ending[at] = key, visit


@compiled
def _sink(end_s, ending, size):  # type: ignore[no-untyped-def]
    """Remove the first end; `size` is the number that remain."""
    past = np.uint64(size)
    at, below = _NONE, _ONE
    while below + _ONE < past:
        below += np.uint64(end_s[below + _ONE] < end_s[below])
        end_s[at], ending[at] = end_s[below], ending[below]
        at, below = below, below + below + _ONE
    if below < past:
        end_s[at], ending[at] = end_s[below], ending[below]
        at = below
    _rise(end_s, ending, at, end_s[past], ending[past])


@compiled
def _most_at_once(starts_s, ends_s):  # type: ignore[no-untyped-def]
    most = ended = 0
    for begun in range(len(starts_s)):
        while ends_s[ended] <= starts_s[begun]:
            ended += 1
        most = max(most, begun + 1 - ended)
    return most
