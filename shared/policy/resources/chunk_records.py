"""Records of a node's chunks, made from what they hold and who uses them."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Final

from shared.policy.model.chunks import Chunk
from shared.policy.resources.chunk_choice import BusyChunk
from shared.policy.resources.engine_records import MOST_SLOTS, EngineRecords
from shared.policy.resources.model_residency import ModelResidency

_NO_SLOTS: Final[tuple[float, ...]] = (math.inf,) * MOST_SLOTS
_FREE_SLOTS: Final[tuple[float, ...]] = (-math.inf,) * MOST_SLOTS


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
            slots_s = (*_FREE_SLOTS[: max(0, slots)], *ends_s, *_NO_SLOTS)[:MOST_SLOTS]
        uses += (*chunk, row, ends_s[-1], *slots_s)
    count = len(busy)
    if away:
        for gpu in range(models.gpus):
            if away >> gpu & 1:
                uses += (gpu, 1, -1, math.inf, *_NO_SLOTS)
                count += 1
    free, owned, used = units
    values = (models.gpus, len(table), free, count, table.rows, *models.memory(), *models.used_s, *uses)
    own = struct.pack(f"{len(values)}d", *values)
    return EngineRecords(models.gpus, len(table), owned, used, own + table.values.tobytes())
