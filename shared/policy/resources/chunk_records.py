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
    units: tuple[int, int, int],
    busy: Mapping[Chunk, BusyChunk],
    joinable: bool,
    away: int,
) -> EngineRecords:
    """Return the records of a node. O(GPUs + resident engines).

    Args:
        models: what its chunks hold.
        units: GPUs that it may grant now, that it owns, and that are in use.
        busy: its busy chunks.
        joinable: whether busy chunks may get further holders.
        away: GPUs that must not be granted, as bits.
    """
    table, uses = models.table, list[float]()
    for chunk, held in busy.items():
        row, slots_s = table.row(held.service, chunk) if joinable else -1, _NO_SLOTS
        ends_s = sorted(held.holders.values())
        if row >= 0:
            slots = min(models.slots_of(held.service) - len(ends_s), MOST_SLOTS)
            slots_s = (*(-math.inf,) * slots, *ends_s, *_NO_SLOTS)[:MOST_SLOTS]
        uses += (*chunk, row, ends_s[-1], *slots_s)
    count = len(busy)
    if away:
        for gpu in range(models.gpus):
            if away >> gpu & 1:
                uses += (gpu, 1, -1, math.inf, *_NO_SLOTS)
                count += 1
    values = np.concatenate((np.array([*models.memory(), *models.used_s, *uses], np.float64), table.values))
    free, owned, used = units
    return EngineRecords(models.gpus, len(table), free, count, table.rows, owned, used, values)
