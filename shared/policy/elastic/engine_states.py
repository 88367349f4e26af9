"""States of a plan of model calls, as arrays for its loops (see `engine_plan`).

States have a leading dimension, the depth of the search; depth 0 is the plan so far. Engines are numbered: those that
are resident when the plan begins, by node, then one for each call of the plan.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.model.compiling import compiled
from shared.policy.resources.engine_records import Floats

LEAST_S: Final = 1e-6
"""Least wait for what is used: its end is never now."""

SERVICE, NODE, FIRST, SIZE = range(4)
GB, EVICT_S = range(2)
MEMORY_GB, USED_S = range(2)

GPU_MEMORY_GB, GPU_UNTIL_S, GPU_USED_S, GPU_ENGINE = range(4)
ENGINE_SERVICE, ENGINE_FIRST, ENGINE_SIZE, ENGINE_GB, ENGINE_EVICT_S, ENGINE_READY_S = range(6)
ROW_SERVED, ROW_RESTORE_S, ROW_GB, ROW_UNUSABLE, ROW_SLOTS, ROW_EVICT_S = range(6)
GPU_COLUMNS, ENGINE_COLUMNS = 4, 6
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
    accepted: Flags
    sharers: Floats
    like: Counts
    """Number of the first call that is equal."""


@compiled
def begin(now, values, layout, plan, states):  # type: ignore[no-untyped-def]
    """Read the records of all nodes, one after the other: fill the state in which nothing is planned."""
    at = np.int64(0)
    for node in range(len(layout.gpu_firsts) - 1):
        first, past = layout.engine_firsts[node], layout.engine_firsts[node + 1]
        for gpu in range(layout.gpu_firsts[node], layout.gpu_firsts[node + 1]):
            layout.gpus[MEMORY_GB, gpu] = values[at + GPU_MEMORY_GB]
            layout.gpus[USED_S, gpu] = values[at + GPU_USED_S]
            states.until_s[0, gpu] = _wait_s(values[at + GPU_UNTIL_S], now)
            used_by = np.int64(values[at + GPU_ENGINE])
            states.holder[0, gpu] = first + used_by if used_by >= 0 else -1
            at += GPU_COLUMNS
        for engine in range(first, past):
            plan.numbers[SERVICE, engine] = np.int64(values[at + ENGINE_SERVICE])
            plan.numbers[NODE, engine] = node
            plan.numbers[FIRST, engine] = np.int64(values[at + ENGINE_FIRST])
            plan.numbers[SIZE, engine] = np.int64(values[at + ENGINE_SIZE])
            plan.values[GB, engine] = values[at + ENGINE_GB]
            plan.values[EVICT_S, engine] = values[at + ENGINE_EVICT_S]
            states.resident[0, engine] = True
            states.ready_s[0, engine] = max(0.0, values[at + ENGINE_READY_S] - now)
            at += ENGINE_COLUMNS
        for engine in range(first, past):
            for slot in range(states.slots_s.shape[2]):
                states.slots_s[0, engine, slot] = _wait_s(values[at + slot], now)
            at += states.slots_s.shape[2]
        for gpu in range(layout.gpu_firsts[node], layout.gpu_firsts[node + 1]):
            if states.holder[0, gpu] >= 0:  # of overdue slots, the one that ended first is free last
                for slot in range(states.slots_s.shape[2]):
                    if states.slots_s[0, states.holder[0, gpu], slot] < np.inf:
                        free_s = states.slots_s[0, states.holder[0, gpu], slot]
                        states.until_s[0, gpu] = max(states.until_s[0, gpu], free_s)


@compiled
def _wait_s(until_s, now):  # type: ignore[no-untyped-def]
    """Seconds until a predicted end: as many as it is overdue, never 0; 0 for what is free."""
    if until_s == -np.inf:
        return 0.0
    return until_s if until_s == np.inf else max(LEAST_S, abs(until_s - now))
