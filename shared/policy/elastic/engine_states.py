"""States of a plan of model calls, as arrays for its loops (see `engine_plan`).

States have a leading dimension, the depth of the search; depth 0 is the plan so far. Engines are numbered: those that
are resident when the plan begins, by node, then one for each call of the plan.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.model.compiling import compiled
from shared.policy.resources.engine_records import ENGINE_COLUMNS, MOST_CHUNKS, USE_COLUMNS, Floats

LEAST_S: Final = 1e-6
"""Least wait for what is used: its end is never now."""
_SAME_GB: Final = 1e-6
_BELOW: Final = 1.0 - 2.0**-48
"""Factor that makes a bound lower than the cost despite the rounding of both."""

SERVICE, NODE, FIRST, SIZE = range(4)
GB, EVICT_S = range(2)
MEMORY_GB, USED_S = range(2)

GPUS, ENGINES, FREE, USES, ROWS, COUNTS = range(6)
USE_FIRST, USE_SIZE, USE_ROW, USE_UNTIL_S, USE_SLOTS_S = range(5)
ENGINE_SERVICE, ENGINE_FIRST, ENGINE_SIZE, ENGINE_GB, ENGINE_EVICT_S, ENGINE_SLOTS, ENGINE_READY_S, ENGINE_USED_S = (
    range(8)
)
ROW_SERVED, ROW_RESTORE_S, ROW_GB, ROW_UNUSABLE, ROW_SLOTS, ROW_EVICT_S, ROW_LEAST_S, ROW_ASLEEP_S = range(8)
"""What `engine_records` describes."""

BOUND_S, PREFERENCE, GRANT_S, LEFT, COST_S, BEGIN_S, CALL, PLACED, DEGREE, CHUNK, JOINED = range(11)
"""Columns of a table of places, which is in the order of the first four."""
COLUMNS: Final = 11

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Layout(NamedTuple):
    """What does not change in a plan."""

    gpu_firsts: Counts
    """First GPU of each node, and the number of all."""
    engine_firsts: Counts
    """The same for the engines that are resident when the plan begins."""
    gpus: Floats
    """By GPU: rows `MEMORY_GB`, `USED_S` (its last grant)."""
    room_gb: Floats
    """Space for one eviction."""


class EngineColumns(NamedTuple):
    """By engine."""

    numbers: Counts
    """Rows `SERVICE`, `NODE`, `FIRST`, `SIZE`."""
    values: Floats
    """Rows `GB`, `EVICT_S`."""


class States(NamedTuple):
    """By depth."""

    until_s: Floats
    """By GPU, seconds until it is free."""
    holder: Counts
    """By GPU, the engine that uses it; -1: none that can be joined."""
    resident: Flags
    """By engine."""
    ready_s: Floats
    """By engine, seconds until it is restored."""
    slots_s: Floats
    """By engine and slot, seconds until it is free."""
    left: Counts
    """By node, GPUs that may be taken now."""


class Calls(NamedTuple):
    """By call: see `engine_plan.PlannableCall`."""

    service: Counts
    lasts_s: Floats
    rows: Floats
    accepted: Floats
    sharers: Floats
    credits_s: Floats
    like: Counts
    """Number of the first call that is equal."""


@compiled
def begin(now, values, layout, plan, states):  # type: ignore[no-untyped-def]
    """Read the records of all nodes, one after the other: fill the state in which nothing is planned. Engines of a node
    that were used most recently are first.
    """
    at, layout.gpu_firsts[0], layout.engine_firsts[0] = np.int64(0), 0, 0
    for node in range(states.left.shape[1]):
        gpus, engines, rows = np.int64(values[at + GPUS]), np.int64(values[at + ENGINES]), np.int64(values[at + ROWS])
        own, first = layout.gpu_firsts[node], layout.engine_firsts[node]
        layout.gpu_firsts[node + 1], layout.engine_firsts[node + 1] = own + gpus, first + engines
        states.left[0, node] = np.int64(values[at + FREE])
        gpus_at = at + COUNTS
        for gpu in range(own, own + gpus):
            layout.gpus[MEMORY_GB, gpu] = values[gpus_at + gpu - own]
            layout.gpus[USED_S, gpu] = values[gpus_at + gpus + gpu - own]
            states.until_s[0, gpu], states.holder[0, gpu] = 0.0, -1
        uses_at = gpus_at + gpus * len(layout.gpus)
        rows_at = uses_at + np.int64(values[at + USES]) * USE_COLUMNS
        at = rows_at + rows * ENGINE_COLUMNS
        ordered = _recent_rows(values[rows_at:at], engines)
        places = np.empty(rows, np.int64)
        for place in range(len(ordered)):
            places[ordered[place]] = first + place
            _begin_engine(now, values[rows_at + ordered[place] * ENGINE_COLUMNS :], node, first + place, plan, states)
        for use in range(uses_at, rows_at, USE_COLUMNS):
            engine = places[np.int64(values[use + USE_ROW])] if values[use + USE_ROW] >= 0 else -1
            until_s = _wait_s(values[use + USE_UNTIL_S], now)
            for slot in range(states.slots_s.shape[2]):
                if engine >= 0:
                    free_s = _wait_s(values[use + USE_SLOTS_S + slot], now)
                    states.slots_s[0, engine, slot] = free_s
                    if free_s < np.inf:  # of overdue slots, the one that ended first is free last
                        until_s = max(until_s, free_s)
            begins = own + np.int64(values[use + USE_FIRST])
            for gpu in range(begins, begins + np.int64(values[use + USE_SIZE])):
                states.until_s[0, gpu], states.holder[0, gpu] = until_s, engine


@compiled
def _recent_rows(rows, count):  # type: ignore[no-untyped-def]
    """Rows of an `EngineTable` that are used, in the order of their last grants; of equal ones the last chunk first."""
    ordered, found = np.empty(count, np.int64), 0
    for row in range(len(rows) // ENGINE_COLUMNS):
        if rows[row * ENGINE_COLUMNS + ENGINE_SIZE] > 0.0:
            to = found
            while to > 0 and _is_before(rows, row, ordered[to - 1]):
                ordered[to] = ordered[to - 1]
                to -= 1
            ordered[to] = row
            found += 1
    return ordered


@compiled
def _is_before(rows, one, other):  # type: ignore[no-untyped-def]
    one, other = one * ENGINE_COLUMNS, other * ENGINE_COLUMNS
    if rows[one + ENGINE_USED_S] != rows[other + ENGINE_USED_S]:
        return rows[one + ENGINE_USED_S] > rows[other + ENGINE_USED_S]
    if rows[one + ENGINE_FIRST] != rows[other + ENGINE_FIRST]:
        return rows[one + ENGINE_FIRST] > rows[other + ENGINE_FIRST]
    return rows[one + ENGINE_SIZE] > rows[other + ENGINE_SIZE]


@compiled
def _begin_engine(now, one, node, engine, plan, states):  # type: ignore[no-untyped-def]
    plan.numbers[SERVICE, engine], plan.numbers[NODE, engine] = np.int64(one[ENGINE_SERVICE]), node
    plan.numbers[FIRST, engine], plan.numbers[SIZE, engine] = np.int64(one[ENGINE_FIRST]), np.int64(one[ENGINE_SIZE])
    plan.values[GB, engine], plan.values[EVICT_S, engine] = one[ENGINE_GB], one[ENGINE_EVICT_S]
    states.resident[0, engine], states.ready_s[0, engine] = True, max(0.0, one[ENGINE_READY_S] - now)
    for slot in range(states.slots_s.shape[2]):
        states.slots_s[0, engine, slot] = 0.0 if slot < one[ENGINE_SLOTS] else np.inf


@compiled
def _wait_s(until_s, now):  # type: ignore[no-untyped-def]
    """Seconds until a predicted end: as many as it is overdue, never 0; 0 for what is free."""
    if until_s == -np.inf:
        return 0.0
    return until_s if until_s == np.inf else max(LEAST_S, abs(until_s - now))


@compiled
def first_slot(slots_s, depth, engine):  # type: ignore[no-untyped-def]
    """Slot of an engine that is free first. `slots_s`: of `States`."""
    first = 0
    for slot in range(1, slots_s.shape[2]):
        if slots_s[depth, engine, slot] < slots_s[depth, engine, first]:
            first = slot
    return first


@compiled
def holds(layout, plan, states, depth, added, service, node):  # type: ignore[no-untyped-def]
    """Whether an engine of a service is resident on a node."""
    known, own = layout.engine_firsts[-1], layout.engine_firsts[node]
    count = layout.engine_firsts[node + 1] - own
    for number in range(count + added):
        at = own + number if number < count else known + number - count
        if plan.numbers[SERVICE, at] == service and plan.numbers[NODE, at] == node and states.resident[depth, at]:
            return True
    return False


@compiled
def resident_at(layout, plan, states, depth, added, service, node, first, size):  # type: ignore[no-untyped-def]
    """Engine of a service on a chunk of a node that is resident; -1: none."""
    known, own = layout.engine_firsts[-1], layout.engine_firsts[node]
    count = layout.engine_firsts[node + 1] - own
    for number in range(count + added):
        at = own + number if number < count else known + number - count
        same = plan.numbers[SERVICE, at] == service and plan.numbers[FIRST, at] == first and states.resident[depth, at]
        if same and plan.numbers[SIZE, at] == size and plan.numbers[NODE, at] == node:
            return at
    return -1


@compiled
def evict(layout, plan, states, depth, added, node, first, size, gb, wanted, leave):  # type: ignore[no-untyped-def]
    """Return (seconds, engines, wanted ones of them) of what has to leave for an engine; `leave`: it leaves.

    Engines that were used most recently stay, as far as memory suffices. `wanted`: services of waiting calls.
    """
    slowest_s, count, missed, room_gb = 0.0, 0, 0, layout.room_gb
    for gpu in range(size):
        room_gb[gpu] = layout.gpus[MEMORY_GB, layout.gpu_firsts[node] + first + gpu] - gb
    known, own = layout.engine_firsts[-1], layout.engine_firsts[node]
    for number in range(added + layout.engine_firsts[node + 1] - own):
        at = known + added - 1 - number if number < added else own + number - added
        if not states.resident[depth, at] or plan.numbers[NODE, at] != node:
            continue
        begins = max(plan.numbers[FIRST, at] - first, 0)
        ends = min(plan.numbers[FIRST, at] + plan.numbers[SIZE, at] - first, size)
        stays = True
        for gpu in range(begins, ends):
            stays = stays and room_gb[gpu] >= plan.values[GB, at] - _SAME_GB
        if stays:
            for gpu in range(begins, ends):
                room_gb[gpu] -= plan.values[GB, at]
            continue
        count += 1
        slowest_s = max(slowest_s, plan.values[EVICT_S, at])
        for service in wanted:
            missed += service == plan.numbers[SERVICE, at]
        if leave:
            states.resident[depth, at] = False
    return slowest_s, count, missed


@compiled
def sleeps(row, chunk):  # type: ignore[no-untyped-def]
    """Whether an engine sleeps on a chunk, by its number among those of its size."""
    return chunk < MOST_CHUNKS and row[ROW_ASLEEP_S + chunk] >= 0.0


@compiled
def restore_s(row, chunk):  # type: ignore[no-untyped-def]
    """Seconds of a restore on a chunk, by its number among those of its size."""
    return row[ROW_ASLEEP_S + chunk] if sleeps(row, chunk) else row[ROW_RESTORE_S]


@compiled
def shortest_s(calls, call, node, at, resident, price):  # type: ignore[no-untyped-def]
    """Lower bound of the cost of a call on a node at one degree from its begin; `resident`: perhaps without restore."""
    row, last_s = calls.rows[call, node, at], calls.lasts_s[call, at]
    if row[ROW_SERVED] == 0.0 or calls.accepted[call, node] == 0.0 or last_s == np.inf:
        return np.inf
    restore_s = 0.0 if resident else max(0.0, row[ROW_LEAST_S] - calls.credits_s[call, at])
    return (restore_s + last_s * (1.0 + price * (1 << at) / max(1.0, row[ROW_SLOTS]))) * _BELOW
