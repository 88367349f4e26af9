"""Records of the GPUs and engines of one node, for the search of a plan (`shared/policy/elastic/engine_plan.py`)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.model.chunks import SIZES, ServedModel

MOST_SLOTS: Final = 8
"""Most slots of one engine that are listed: those that are free first."""

ROW_COLUMNS: Final = 6

Floats = NDArray[np.float64]


class EngineRecords(NamedTuple):
    """State of one node.

    `values` has, one after the other, for each GPU (memory in GB; predicted end of what uses it, minus infinity if
    nothing does, infinity if it must not be granted; time of its last grant; index of the engine that uses it, if that
    can be joined, else -1), for each resident engine (`number_of` its service; first GPU and size of its chunk; memory
    on each GPU; seconds of an eviction; expected end of its restore), and for each engine, `MOST_SLOTS` times, the
    predicted end of what uses a slot: ascending, minus infinity for nothing, infinity for no slot. Engines that were
    used most recently are first.
    """

    gpus: int
    engines: int
    values: Floats


def number_of(service: str) -> int:
    """Return a number for the name of a service, exact as a float. Valid in this process only."""
    return hash(service) & (1 << 53) - 1


def service_row(one: ServedModel | None) -> Floats:
    """Return what a plan needs to know of a service on a node. By size of the chunk, of `SIZES`: 0 if there is no such
    engine; seconds of its restore; its memory on each GPU; chunks where it is quarantined, as bits by `first // size`;
    most holders; seconds of its eviction.
    """
    row = np.zeros((len(SIZES), ROW_COLUMNS))
    if one is None:
        return row
    for at, size in enumerate(SIZES):
        if size in one.degrees:
            bits = sum(1 << chunk.first // size for chunk in one.unusable if chunk.size == size)
            restore_s, evict_s = one.restore_s.get(size, 0.0), one.evict_s.get(size, 0.0)
            row[at] = 1.0, restore_s, one.gb(size), bits, one.concurrency, evict_s
    return row
