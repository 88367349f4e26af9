"""What a head that waits for a chunk of GPUs needs of a node, beside work that would start there now."""

from __future__ import annotations

import math
from collections.abc import Collection

from shared.policy.model.chunks import Chunk, aligned
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.resource import Use


def fit_together(chunks: Chunks, units: int, use: Use, others: int, other: Use) -> bool:
    """Return whether a second holder could have a place too, after the first one has taken its own."""
    first = chunks.choose(units, use.service, use.numbers)
    second = chunks.choose(others, other.service, other.numbers)
    if first is None or second is None:
        return False
    if use.service and use.service == other.service and first.chunk == second.chunk:
        busy = chunks.busy.get(first.chunk)
        held = 0 if busy is None else len(busy.holders)
        return held + 2 <= chunks.models.served[use.service].concurrency
    return not (first.joins and second.joins)  # one of them needs no chunk of its own


def free_first(
    chunks: Chunks, units: int, service: str, waiting: Collection[str], turn_s: float
) -> tuple[float, Chunk | None]:
    """Return when a chunk is predicted to be free first for a service whose call has to wait, and this chunk; None if
    none of this size is open to it.

    It is free when all its holders have ended, and the turns of the services that would have to leave, of those in
    `waiting`. Minus infinity: it is free. O(chunks of this size * (busy chunks + resident services)).
    """
    first_s, found = math.inf, None
    for chunk in aligned(chunks.capacity, units):
        if not chunks.is_open(chunk, service):
            continue
        ends_s = [max(one.holders.values()) for at, one in chunks.busy.items() if at.overlaps(chunk)]
        leaving = chunks.models.leaving(chunk, service) if service else ()
        ends_s += [since_s + turn_s for name, since_s in leaving if name in waiting]
        free_s = max(ends_s, default=-math.inf)
        if found is None or free_s < first_s:
            first_s, found = free_s, chunk
    return first_s, found
