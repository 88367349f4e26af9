"""Loops of elastic scheduling: marginal gains, the completion heap, greedy eviction (ARL-Tangram Algorithms 1, 2).

Actions are flat rows, candidates first, then waiting actions: action i has the indices `firsts[i]` to `firsts[i + 1]`
of `units`, `lasts_s` and `costs` (its duration; more if units have a price), fewest units first. All compiled functions
that call each other are in this file, because numba's cache only notices changes in a function's own file.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.elastic.arrange import arrange_counted
from shared.policy.model.compiling import compiled

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

TOLERANCE: Final = 1e-12
"""Relative rise of an action's gains that counts as rounding, not as a convex shape."""

TOLERANCE_S: Final = 1e-6
"""Least saving of an eviction: less may be the rounding error of a long sum."""

_NO_TABLE: Final = np.zeros((0, 0), np.int32)
_NONE: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
"""Indices into a heap are unsigned, see simulation_kernel.py."""


class Rows(NamedTuple):
    """Actions in flat rows (see the module)."""

    units: Counts
    lasts_s: Floats
    costs: Floats
    firsts: Counts


def evict(
    rows: Rows, count: int, spare: int, busy_s: Floats, *, evictable: int, depth: int, beyond: tuple[int, float]
) -> tuple[tuple[int, ...], float]:
    """Return the units of each candidate that is kept, and the objective of keeping them: see `scheduling.allot`.

    Args:
        rows: the candidates, then the waiting actions that are placed one by one.
        count: number of candidates.
        spare: units that are free beyond the fewest of all candidates.
        busy_s: for each unit that is not free, seconds until it is.
        evictable: most candidates that may be evicted; less than all.
        depth: number of its amounts that the first in the queue tries.
        beyond: number of waiting actions behind the rows, and their unit-seconds.
    """
    bounds = rows.firsts[: count + 1]
    best = _cheapest(rows.costs, bounds)
    table = _NO_TABLE
    if not _concave(rows.units, rows.costs, bounds, best):
        free = spare + int(rows.units[bounds[:-1]].sum())
        table = arrange_counted(rows.units[: bounds[-1]], rows.costs[: bounds[-1]], bounds, free)
    chosen, objective_s = _evict(*rows, best, table, spare, busy_s, evictable, depth, *beyond)
    return tuple(rows.units[bounds[: len(chosen)] + chosen].tolist()), float(objective_s)


def queue_cost_s(
    rows: Rows, more: Counts, spare: int, busy_s: Floats, *, depth: int, beyond: tuple[int, float], enough_s: float
) -> float:
    """Return the cost of all actions behind the first, to which `more` gives units beyond their fewest.

    It stops above `enough_s`. Else as for `evict`, which calls the same compiled loops.
    """
    kept = len(more)
    ends_s = _completions(rows.units, rows.lasts_s, rows.firsts, more, kept, spare, busy_s)
    args = (rows.units, rows.lasts_s, rows.costs, rows.firsts, kept, ends_s, depth, *beyond, enough_s)
    return float(_queued(*args))


def grow(rows: Rows, spare: int) -> Counts:
    """Return the units beyond its fewest that each action is given by marginal gains alone.

    Raises:
        ValueError: that might not be the optimum, because an action's gains are not concave over consecutive amounts.
    """
    best = _cheapest(rows.costs, rows.firsts)
    if not _concave(rows.units, rows.costs, rows.firsts, best):
        raise ValueError("gains are not concave over consecutive amounts")
    more: Counts = np.zeros(len(best), np.int64)
    _grow(rows.costs, rows.firsts, best, more, len(best), spare)
    return more


# ---- marginal gains -----------------------------------------------------------------------------------------------


@compiled
def _cheapest(costs, firsts):  # type: ignore[no-untyped-def]
    """Index of each action's cheapest amount, counted from the fewest: no optimum gives it more."""
    best = np.zeros(len(firsts) - 1, np.int64)
    for action in range(len(best)):
        for place in range(firsts[action], firsts[action + 1]):
            if costs[place] < costs[firsts[action] + best[action]]:
                best[action] = place - firsts[action]
    return best


@compiled
def _concave(units, costs, firsts, best):  # type: ignore[no-untyped-def]
    """Return whether up to each cheapest amount every unit is allowed and none gains more than the one before it."""
    for action in range(len(best)):
        first = firsts[action]
        gained = np.inf
        for place in range(first + 1, first + best[action] + 1):
            gain = costs[place - 1] - costs[place]
            if units[place] != units[place - 1] + 1 or gain > gained + TOLERANCE * costs[first]:
                return False
            gained = gain
    return True


@compiled
def _grow(costs, firsts, best, more, kept, spare):  # type: ignore[no-untyped-def]
    """Spend spare units one by one where they gain most, on the first `kept` actions; return the unused ones.

    It can continue after the units of others were added to the spare ones. Scanning all gains for every unit costs 0.1
    us for 256 actions; a heap would cost less and need more code.
    """
    gains = np.zeros(kept)
    for action in range(kept):
        if more[action] < best[action]:
            place = firsts[action] + more[action]
            gains[action] = costs[place] - costs[place + 1]
    while spare:
        action = int(np.argmax(gains))  # the first of equals
        if gains[action] <= 0:
            break
        more[action] += 1
        spare -= 1
        place = firsts[action] + more[action]
        gains[action] = costs[place] - costs[place + 1] if more[action] < best[action] else 0.0
    return spare


# ---- the completion heap ------------------------------------------------------------------------------------------


@compiled
def _replace(ends_s, size, end_s):  # type: ignore[no-untyped-def]
    """Replace the unit that is free first by one that is free at `end_s`."""
    past, at, below = np.uint64(size), _NONE, _ONE
    while below < past:
        if below + _ONE < past and ends_s[below + _ONE] < ends_s[below]:
            below += _ONE
        if end_s <= ends_s[below]:
            break
        ends_s[at] = ends_s[below]
        at, below = below, below + below + _ONE
    ends_s[at] = end_s


@compiled
def _push(ends_s, size, end_s):  # type: ignore[no-untyped-def]
    at = np.uint64(size)
    while at:
        above = (at - _ONE) >> _ONE
        if ends_s[above] <= end_s:
            break
        ends_s[at] = ends_s[above]
        at = above
    ends_s[at] = end_s


@compiled
def _begin(ends_s, units, lasts_s):  # type: ignore[no-untyped-def]
    """Start an action on the units that are free first: it starts when all are, and holds all to its end."""
    size = len(ends_s)
    for _ in range(units - 1):
        size -= 1
        _replace(ends_s, size, ends_s[size])
    start_s = ends_s[0]
    _replace(ends_s, size, start_s + lasts_s)
    for place in range(size, len(ends_s)):
        _push(ends_s, place, start_s + lasts_s)
    return start_s


@compiled
def _completions(units, lasts_s, firsts, more, kept, spare, busy_s):  # type: ignore[no-untyped-def]
    """Heap of the times when each unit is free after the first `kept` candidates have started, spare units included."""
    held = 0
    for action in range(kept):
        held += units[firsts[action] + more[action]]
    ends_s = np.zeros(spare + held + len(busy_s))
    size = spare
    for end_s in busy_s:
        _push(ends_s, size, max(0.0, end_s))
        size += 1
    for action in range(kept):
        place = firsts[action] + more[action]
        for _ in range(units[place]):
            _push(ends_s, size, lasts_s[place])
            size += 1
    return ends_s


@compiled
def fluid_starts_s(ends_s, count, work_s):  # type: ignore[no-untyped-def]
    """Sum of the starts of `count` actions by the fluid approximation: their work fills the units, the earliest first.

    The final level is where the volume below it equals the work. It is found from above, starting with the level that
    covers all units. Half of level^2 - end^2, summed over the covered units, is the total wait.
    """
    if not count or work_s <= 0.0:
        return count * ends_s[0] if count else 0.0
    covered, below_s, level_s = len(ends_s), np.sum(ends_s), np.inf
    while True:
        lower_s = (work_s + below_s) / covered
        if lower_s >= level_s:
            break
        level_s, covered, below_s = lower_s, 0, 0.0
        for end_s in ends_s:
            if end_s < level_s:
                covered += 1
                below_s += end_s
    waited_s = 0.0
    for end_s in ends_s:
        if end_s < level_s:
            waited_s += (level_s - end_s) * (level_s + end_s) / 2
    return count * waited_s / work_s


@compiled
def _queued(units, lasts_s, costs, firsts, kept, ends_s, depth, beyond, work_s, enough_s):  # type: ignore[no-untyped-def]
    """Cost of all actions behind the first `kept`: start and cost by list scheduling, the first trying `depth` amounts.

    For actions beyond the rows only the starts count, because their costs do not depend on this decision. It stops as
    soon as the sum is certainly not below `enough_s`: no action starts before the one in front.
    """
    count = len(firsts) - 1
    if kept == count:
        return fluid_starts_s(ends_s, beyond, work_s)
    least_s, sure_s = np.inf, 0.0
    for action in range(kept + 1, count):
        sure_s += costs[firsts[action]]
    for tried in range(firsts[kept], min(firsts[kept] + depth, firsts[kept + 1])):
        if units[tried] > len(ends_s):
            break
        heap_s = ends_s.copy()
        start_s = _begin(heap_s, units[tried], lasts_s[tried])
        total_s, behind = start_s + costs[tried] + sure_s, count - kept - 1 + beyond
        for action in range(kept + 1, count):
            if total_s + behind * start_s >= min(enough_s, least_s):
                break
            place = firsts[action]
            start_s = _begin(heap_s, units[place], lasts_s[place])
            total_s += start_s
            behind -= 1
        total_s += fluid_starts_s(heap_s, beyond, work_s) if behind == beyond else behind * start_s
        least_s = min(least_s, total_s)
    return least_s


# ---- greedy eviction ----------------------------------------------------------------------------------------------


@compiled
def _read(table, units, firsts, more, kept, free):  # type: ignore[no-untyped-def]
    """Read the best allocation of the first `kept` candidates from the DP's table; return the unused units."""
    for action in range(kept - 1, -1, -1):
        more[action] = table[action + 1, free] - 1
        free -= units[firsts[action] + more[action]]
    return free


@compiled
def _evict(units, lasts_s, costs, firsts, best, table, spare, busy_s, evictable, depth, beyond, work_s):  # type: ignore[no-untyped-def]
    """See `evict`: indices of each kept candidate's units beyond the fewest; the objective."""
    count = len(best)
    more, decided, objective_s, kept_best = np.zeros(count, np.int64), np.zeros(count, np.int64), np.inf, count
    for kept in range(count, count - evictable - 1, -1):
        if kept < count:
            spare += units[firsts[kept] + more[kept]]
        if len(table):
            for action in range(kept):
                spare += units[firsts[action] + more[action]]
            spare = _read(table, units, firsts, more, kept, spare)
        else:
            spare = _grow(costs, firsts, best, more, kept, spare)
        if kept < count and spare >= units[firsts[kept]]:
            break  # useless: the evicted action would fit
        total_s = 0.0
        for action in range(kept):
            total_s += costs[firsts[action] + more[action]]
        ends_s = _completions(units, lasts_s, firsts, more, kept, spare, busy_s)
        enough_s = objective_s - TOLERANCE_S - total_s
        total_s += _queued(units, lasts_s, costs, firsts, kept, ends_s, depth, beyond, work_s, enough_s)
        if total_s >= objective_s - TOLERANCE_S:
            break
        objective_s, kept_best = total_s, kept
        decided[:kept] = more[:kept]
    return decided[:kept_best], objective_s
