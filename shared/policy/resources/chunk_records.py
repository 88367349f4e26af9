"""Records of a node's chunks, made from what they hold and who uses them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from shared.policy.model.chunks import Chunk
from shared.policy.resources.chunk_choice import BusyChunk
from shared.policy.resources.engine_records import MOST_SLOTS, EngineRecords
from shared.policy.resources.model_residency import ModelResidency

_NO_SLOTS: Final = (math.inf,) * MOST_SLOTS
_FREE_SLOTS: Final = tuple(((-math.inf,) * free + _NO_SLOTS)[:MOST_SLOTS] for free in range(MOST_SLOTS + 1))
"""By number of free slots."""


def records_of(
    models: ModelResidency,
    capacity: int,
    busy: Mapping[Chunk, BusyChunk],
    joinable: Mapping[Chunk, BusyChunk],
    away: int,
) -> EngineRecords:
    """Return the records of a node with `capacity` GPUs. O(GPUs + resident engines).

    Args:
        models: what its chunks hold.
        busy: its busy chunks.
        joinable: those of them that may get further holders.
        away: GPUs that must not be granted, as bits.
    """
    until_s, engine_of = [-math.inf] * capacity, [-1] * capacity
    for chunk, used in busy.items():
        until_s[chunk.first : chunk.first + chunk.size] = [max(used.holders.values())] * chunk.size
    engines, slots_s, count = list[float](), list[float](), 0
    for _, chunk, name, since_s in models.engines():
        first, size = chunk
        number, slots, gb, evict_s = models.engine(name, size)
        engines += (number, first, size, gb, evict_s, since_s)
        if (held := joinable.get(chunk)) is not None and held.service == name:
            engine_of[first : first + size] = [count] * size
            ends_s = [*[-math.inf] * min(slots - len(held.holders), MOST_SLOTS), *sorted(held.holders.values())]
            slots_s += (*ends_s, *_NO_SLOTS)[:MOST_SLOTS]
        else:
            slots_s += _FREE_SLOTS[min(slots, MOST_SLOTS)]
        count += 1
    gpus = list[float]()
    for gpu, memory_gb, used_s in zip(
        range(capacity), models.memory_of(capacity), models.grants_of(capacity), strict=True
    ):
        if away >> gpu & 1:
            gpus += (memory_gb, math.inf, used_s, -1)
        else:
            gpus += (memory_gb, until_s[gpu], used_s, engine_of[gpu])
    return EngineRecords(capacity, count, np.array(gpus + engines + slots_s))
