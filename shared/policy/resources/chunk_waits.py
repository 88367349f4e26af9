"""What a head that waits for a chunk of GPUs needs of a node, beside work that would start there now."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from shared.policy.model.chunks import Chunk, aligned
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.resource import Use

LONGEST_TURN: Final = 12.0
"""Longest turn of a service, in turns of one whose successor is restored at once."""


def turn_s(shortest_s: float, swap_s: float) -> float:
    """Return how long a service has its turn, while work waits for it: as long as the swap at its end takes, so that
    swaps take half of the time at most; but `shortest_s` at least, and `LONGEST_TURN` times as long at most.
    """
    return min(max(shortest_s, swap_s), LONGEST_TURN * shortest_s)


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
    chunks: Chunks, units: int, service: str, waiting: Collection[str], shortest_s: float
) -> tuple[float, Chunk | None]:
    """Return when a chunk is predicted to be free first for a service whose call has to wait, and this chunk; None if
    none of this size is open to it.

    It is free when all its holders have ended, and the turns of the services that would have to leave, of those in
    `waiting`. `shortest_s`: as of `turn_s`. Minus infinity: it is free. O(chunks of this size * (busy chunks + resident
    services)).
    """
    first_s, found, models = math.inf, None, chunks.models
    for chunk in aligned(chunks.capacity, units):
        if not chunks.is_open(chunk, service):
            continue
        ends_s = [max(one.holders.values()) for at, one in chunks.busy.items() if at.overlaps(chunk)]
        if service and not models.holds(chunk, service):
            lasts_s = turn_s(shortest_s, models.swap_s(chunk, service))
            ends_s += [since_s + lasts_s for name, since_s in models.leaving(chunk, service) if name in waiting]
        free_s = max(ends_s, default=-math.inf)
        if found is None or free_s < first_s:
            first_s, found = free_s, chunk
    return first_s, found
