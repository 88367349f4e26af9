"""List scheduling in virtual time: the start of each visit, given its order and the number of units.

One compiled loop that can stop and continue while units are added or removed: the replay's virtual mesh
(treadle/lab/replay). SIMULATE runs the same rules without stops (`simulation_kernel`). A *visit* is one stage of one
request; the visit after `v` in the same request is `v + 1`. The visits that wait for a pool are in a heap by (key,
number). A head that does not fit waits, and nothing overtakes it. The real dispatcher may backfill there, so this is
pessimistic.

About 0.15 us a visit once compiled (2 s, cached on disk if possible).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.model.compiling import compiled

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]

TOLERANCE_S: Final = 1e-6
"""Delays below a microsecond are rounding, not queueing."""

GOING: Final = 0
QUIET: Final = 1
"""No event is left up to the given moment."""
BROKEN: Final = 2
"""A visit that had to wait would start after its limit."""
COMPLETE: Final = 3
"""The last visit of a batch has ended."""

SERVED: Final = 0
"""Index in `ScheduleState.progress`: arrivals handled."""
RUNNING: Final = 1
"""Index in `ScheduleState.progress`: running visits."""

VISIT: Final = np.dtype(
    [
        ("lasts_s", np.float64),
        ("limit_s", np.float64),  # latest start if it had to wait; infinite without a limit
        ("key", np.float64),  # smaller goes first; then the smaller number
        ("pool", np.int32),
        ("units", np.int32),
        ("owner", np.int32),  # number of its batch
        ("final", np.int32),  # 1: the last visit of its request
    ],
    align=True,
)
"""One visit. A record instead of columns, so that the fields an event uses are adjacent in memory."""

TIMES: Final = np.dtype([("ready_s", np.float64), ("start_s", np.float64)])
"""Start of its wait (undefined before) and its start (infinite before)."""

ENTRY: Final = np.dtype([("key", np.float64), ("visit", np.int64)])
"""One entry of a heap."""


class ScheduleState(NamedTuple):
    """State of one schedule; `advance` changes it in place. Created by `schedule_state`."""

    now_s: Floats
    """One entry: time of the last event."""
    progress: Counts
    """`SERVED` and `RUNNING`."""
    free: Counts
    """By pool; below zero while more units are in use than are owned."""
    least_free: Counts
    """By pool: the fewest free units so far."""
    over_unit_s: Floats
    """By pool: unit-seconds that ran beyond the owned units."""
    left: Counts
    """By batch: requests whose last visit has not ended. Set by the caller."""
    complete_s: Floats
    """By batch: end of its last visit; infinite until then."""
    times: Records
    """By visit, `TIMES`."""
    ends: Records
    """Heap of running visits, by end."""
    queues: Records
    """(pools, visits) Heaps of waiting visits, by (key, number)."""
    waiting: Counts
    """By pool: number of waiting visits."""


def schedule_state(batches: int, visits: int, capacity: Counts) -> ScheduleState:
    """Return an empty schedule before any event; `capacity` by pool."""
    pools = len(capacity)
    times = np.empty(visits, TIMES)
    times["start_s"] = np.inf
    return ScheduleState(
        now_s=np.full(1, -np.inf),
        progress=np.zeros(2, np.int64),
        free=capacity.astype(np.int64),
        least_free=capacity.astype(np.int64),
        over_unit_s=np.zeros(pools),
        left=np.zeros(batches, np.int64),
        complete_s=np.full(batches, np.inf),
        times=times,
        ends=np.empty(visits, ENTRY),
        queues=np.empty((pools, visits), ENTRY),
        waiting=np.zeros(pools, np.int64),
    )


def advance(
    visits: Records,
    state: ScheduleState,
    arrivals_s: Floats,
    first_visits: Counts,
    *,
    until_s: float = math.inf,
    heed_limits: bool = False,
    stop_at_complete: bool = False,
) -> int:
    """Advance the schedule up to `until_s` (included), or to the first moment at which the caller asked to stop.

    Args:
        visits: all visits, `VISIT`.
        state: state of the schedule; changed in place. `free` may be changed between calls.
        arrivals_s: arrivals of requests, ascending; those before `progress[SERVED]` have been handled.
        first_visits: by arrival, the request's first visit.
        until_s: last moment to handle.
        heed_limits: stop when the next visit of a pool has waited beyond its limit.
        stop_at_complete: stop after a moment at which a batch became complete.

    Returns:
        `QUIET`, `BROKEN` or `COMPLETE`.

    At each moment all ends and arrivals are handled first, then units are assigned in order.
    """
    return int(_advance(visits, *state, arrivals_s, first_visits, until_s, heed_limits, stop_at_complete))


def begin(visits: Records, state: ScheduleState, under_way: Counts) -> None:
    """Start visits at `now_s`, whether units are free for them or not."""
    state.times["ready_s"][under_way] = state.times["start_s"][under_way] = state.now_s[0]
    np.subtract.at(state.free, visits["pool"][under_way], visits["units"][under_way])
    np.minimum(state.least_free, state.free, out=state.least_free)
    for visit in under_way:
        _push_end(
            state.ends,
            state.progress[RUNNING],
            state.now_s[0] + visits["lasts_s"][visit],
            visit,
        )
        state.progress[RUNNING] += 1


@compiled
def _advance(  # type: ignore[no-untyped-def]  # noqa: C901
    visits, now_s, progress, free, least_free, over_unit_s, left, complete_s, times, ends, queues, waiting,
    arrivals_s, first_visits, until_s, heed_limits, stop_at_complete,
):  # fmt: skip
    """See `advance`. One function on purpose: passing these arrays to functions takes twice as long, because their
    references are counted. They are separate arguments instead of a `ScheduleState`, because the cached compilation
    would name that class.
    """
    served, running, now, complete = progress[SERVED], progress[RUNNING], now_s[0], False
    arrival = arrivals_s[served] if served < len(arrivals_s) else np.inf
    code = GOING
    while code == GOING:
        for pool in range(len(free)):
            while waiting[pool]:
                number = queues[pool, 0].visit
                visit = visits[number]
                if heed_limits and now > visit.limit_s and now > times[number].ready_s + TOLERANCE_S:
                    code = BROKEN
                    break
                if free[pool] < visit.units:
                    break
                waiting[pool] -= 1
                _pop(queues[pool], waiting[pool])
                free[pool] -= visit.units
                least_free[pool] = min(least_free[pool], free[pool])
                times[number].start_s = now
                _push_end(ends, running, now + visit.lasts_s, number)
                running += 1
        if code == BROKEN or (complete and stop_at_complete):
            code = code or COMPLETE
            break
        following = min(arrival, ends[0].key) if running else arrival
        past = min(following, until_s)
        for pool in range(len(free)):
            if free[pool] < 0:
                over_unit_s[pool] -= free[pool] * (past - now)
        if past < np.inf:
            now = past
        if following > until_s or following == np.inf:
            code = QUIET
            break
        while running and ends[0].key <= now:
            number = ends[0].visit
            running -= 1
            _pop_end(ends, running)
            visit = visits[number]
            free[visit.pool] += visit.units
            if not visit.final:
                visit = visits[number + 1]
                times[number + 1].ready_s = now
                _push(queues[visit.pool], waiting[visit.pool], visit.key, number + 1)
                waiting[visit.pool] += 1
                continue
            left[visit.owner] -= 1
            if left[visit.owner] == 0:
                complete_s[visit.owner] = now
                complete = True
        while arrival <= now:
            number = first_visits[served]
            visit = visits[number]
            times[number].ready_s = now
            _push(queues[visit.pool], waiting[visit.pool], visit.key, number)
            waiting[visit.pool] += 1
            served += 1
            arrival = arrivals_s[served] if served < len(arrivals_s) else np.inf
    progress[SERVED], progress[RUNNING], now_s[0] = served, running, now
    return code


@compiled
def _push(heap, size, key, visit):  # type: ignore[no-untyped-def]
    """Add to a binary heap of `size` entries, ordered by (key, visit)."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if heap[above].key < key or (heap[above].key == key and heap[above].visit < visit):
            break
        heap[at].key, heap[at].visit = heap[above].key, heap[above].visit
        at = above
    heap[at].key, heap[at].visit = key, visit


@compiled
def _pop(heap, size):  # type: ignore[no-untyped-def]
    """Remove the first entry; `size` is the number that remain."""
    key, visit = heap[size].key, heap[size].visit
    at, below = 0, 1
    while below < size:
        beside = below + 1
        if beside < size and (
            heap[beside].key < heap[below].key
            or (heap[beside].key == heap[below].key and heap[beside].visit < heap[below].visit)
        ):
            below = beside
        if key < heap[below].key or (key == heap[below].key and visit < heap[below].visit):
            break
        heap[at].key, heap[at].visit = heap[below].key, heap[below].visit
        at, below = below, 2 * below + 1
    heap[at].key, heap[at].visit = key, visit


@compiled
def _push_end(heap, size, key, visit):  # type: ignore[no-untyped-def]
    """Add to a binary heap of `size` entries, ordered by key: all ends of a moment are handled together."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if heap[above].key <= key:
            break
        heap[at].key, heap[at].visit = heap[above].key, heap[above].visit
        at = above
    heap[at].key, heap[at].visit = key, visit


@compiled
def _pop_end(heap, size):  # type: ignore[no-untyped-def]
    """Remove the first entry; `size` is the number that remain. The hole moves to the bottom, without unpredictable
    branches.
    """
    at, below = 0, 1
    while below + 1 < size:
        below += heap[below + 1].key < heap[below].key
        heap[at].key, heap[at].visit = heap[below].key, heap[below].visit
        at, below = below, 2 * below + 1
    if below < size:
        heap[at].key, heap[at].visit = heap[below].key, heap[below].visit
        at = below
    _push_end(heap, at, heap[size].key, heap[size].visit)
