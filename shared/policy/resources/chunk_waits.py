"""What a head that waits for a chunk of GPUs needs of a node, beside work that would start there now."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from shared.policy.model.chunks import Chunk, aligned
from shared.policy.resources.chunk_choice import CALLS_IN_TURN, ChunkWait
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.resource import Use

LONGEST_TURN: Final = 12.0
"""Longest turn of a service, in turns of one whose successor is restored at once."""
PATIENCE: Final = 0.8
"""Part of its wait by which a call lets holders of the chunk that it waits for be overdue."""


def turn_s(shortest_s: float, *swaps_s: float) -> float:
    """Return how long a service has its turn, while work waits for it: as long as the swaps at its end and before its
    beginning take, whichever takes longer; but `shortest_s` at least, and `LONGEST_TURN` times as long at most.
    """
    return min(max(shortest_s, *swaps_s), LONGEST_TURN * shortest_s)


def calls_turn_s(longest_s: float, shortest_s: float) -> float:
    """Return how long a service has its turn, while work waits that needs no restore: `CALLS_IN_TURN` of its calls."""
    return min(CALLS_IN_TURN * longest_s, LONGEST_TURN * shortest_s)


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


def least_share(chunks: Chunks, units: int, service: str) -> int:
    """Return the fewest GPUs that a node must own so that a service can get a chunk when the holders of that chunk have
    ended, and no other ones. It has one (`Chunks.could_ever`). O(chunks of this size * busy chunks).
    """
    one = chunks.models.served.get(service)
    unusable = () if one is None else one.unusable
    return min(
        units + chunks.used - sum(min(units, at.size) for at in chunks.busy if at.overlaps(chunk))
        for chunk in aligned(chunks.capacity, units)
        if chunk not in unusable and not chunk.mask & chunks.bad
    )


def free_first(
    chunks: Chunks,
    units: int,
    service: str,
    waiting: Collection[str],
    shortest_s: float,
    *,
    now: float = -math.inf,
    waited_s: float = 0.0,
    spares: bool = False,
) -> tuple[float, Chunk | None]:
    """Return when a chunk is predicted to be free first for a service whose call has to wait, and this chunk; None if
    none of this size is open to it.

    It is free when all its holders have ended, and the turns of the services in `waiting` that would have to leave, or
    that use it while it holds the service. `shortest_s`: as of `turn_s`. Minus infinity: it is free.
    A holder that is overdue at `now` is assumed to stay for as long as it is overdue already, less `PATIENCE` times
    `waited_s`, for which the call has waited. So a call leaves a chunk where another one takes far longer than
    expected, and does not go from chunk to chunk while each is a little late.
    `spares`: only chunks that are busy, that no service in `waiting` would have to leave, and that the service does not
    use itself.
    O(chunks of this size + services that would leave them); after a change of the node, also O(chunks of this size *
    (busy chunks + resident services)).
    """
    asked, known = (units, service, shortest_s), chunks.cache.waits
    if asked not in known:
        known[asked] = list(_waits(chunks, units, service, shortest_s))
    first_s, found = math.inf, None
    for chunk, first_end_s, free_s, holds, turns in known[asked]:
        if spares and (free_s == -math.inf or _is_used(service, waiting, turns, holds=holds)):
            continue
        free_s = max(free_s, 2.0 * now - PATIENCE * waited_s - first_end_s)
        for name, end_s in turns:
            if end_s > free_s and name in waiting:
                free_s = end_s
        if found is None or free_s < first_s:
            first_s, found = free_s, chunk
    return first_s, found


def _is_used(service: str, waiting: Collection[str], turns: Iterable[tuple[str, float]], *, holds: bool) -> bool:
    """Return whether a service uses a chunk itself, or another one in `waiting` would have to leave it."""
    return any(name == service or (not holds and name in waiting) for name, _ in turns)


def _waits(chunks: Chunks, units: int, service: str, shortest_s: float) -> Iterator[ChunkWait]:
    """Yield the chunks of this size that are open to a service, and within the node's share."""
    models = chunks.models
    for chunk in aligned(chunks.capacity, units):
        if not chunks.is_open(chunk, service):
            continue
        busy = [(at, one) for at, one in chunks.busy.items() if at.overlaps(chunk)]
        if units - sum(min(units, at.size) for at, _ in busy) > chunks.free:
            continue
        ends_s = [end_s for _, one in busy for end_s in one.holders.values()]
        holds, turns = bool(service) and models.holds(chunk, service), list[tuple[str, float]]()
        if holds:
            turns = [(one.service, one.since_s + calls_turn_s(one.longest_s, shortest_s)) for _, one in busy]
        elif service:
            swap_s, leaving = models.swap_s(chunk, service), models.leaving(chunk, service)
            turns = [(one.service, one.since_s + turn_s(shortest_s, swap_s, one.swap_s)) for one in leaving]
        yield ChunkWait(chunk, min(ends_s, default=math.inf), max(ends_s, default=-math.inf), holds, tuple(turns))
