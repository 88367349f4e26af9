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

_NO_SLOTS: Final[tuple[float, ...]] = (math.inf,) * MOST_SLOTS


def records_of(
    models: ModelResidency,
    capacity: int,
    free: int,
    busy: Mapping[Chunk, BusyChunk],
    joinable: bool,
    away: int,
) -> EngineRecords:
    """Return the records of a node with `capacity` GPUs. O(GPUs + resident engines).

    Args:
        models: what its chunks hold.
        free: GPUs that it may grant now.
        busy: its busy chunks.
        joinable: whether busy chunks may get further holders.
        away: GPUs that must not be granted, as bits.
    """
    table, uses = models.table, list[float]()
    for chunk, used in busy.items():
        row, slots_s = table.row(used.service, chunk) if joinable else -1, _NO_SLOTS
        ends_s = sorted(used.holders.values())
        if row >= 0:
            slots = min(models.slots_of(used.service) - len(ends_s), MOST_SLOTS)
            slots_s = (*(-math.inf,) * slots, *ends_s, *_NO_SLOTS)[:MOST_SLOTS]
        uses += (*chunk, row, ends_s[-1], *slots_s)
    count = len(busy)
    if away:
        for gpu in range(capacity):
            if away >> gpu & 1:
                uses += (gpu, 1, -1, math.inf, *_NO_SLOTS)
                count += 1
    gpus = [*models.memory_of(capacity), *models.grants_of(capacity)]
    values = np.concatenate((np.array(gpus + uses, np.float64), table.values))
    return EngineRecords(capacity, len(table), free, count, table.rows, values)
