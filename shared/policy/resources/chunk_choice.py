"""Orders of chunks for one holder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from shared.policy.model.chunks import Chunk, aligned
from shared.policy.resources.engine_records import EngineRecords
from shared.policy.resources.model_residency import ROUNDING_GB, ModelResidency


class ChunkChoice(NamedTuple):
    """Chunk for a holder, with what is better about it first. Smaller is better; comparable between nodes."""

    joins: int
    """0: it joins a busy chunk of its service; 1: it gets a chunk of its own."""
    restores: bool
    """Its service has to be restored there."""
    level: int
    """Size of the free block that is split for it, at most the largest degree; 0 if it joins."""
    loads: bool
    """No engine of its service sleeps there."""
    swap_s: float
    """Measured seconds of the evictions and of the restore of an engine that sleeps there; else 0."""
    evicts: bool
    """Its restore evicts another engine."""
    used_s: float
    """Time of the chunk's last grant."""
    chunk: Chunk


class FreeChunk(NamedTuple):
    """A free chunk, in the order of choice among those that do not hold the service."""

    level: int
    used_s: float
    chunk: Chunk
    room_gb: float
    """Least memory that is free on one of its GPUs."""


class ChunkWait(NamedTuple):
    """A chunk for which a holder may wait."""

    chunk: Chunk
    first_end_s: float
    """Expected end of its first holder; infinity: it has none."""
    ends_s: float
    """Expected end of its last holder; minus infinity: it has none."""
    holds: bool
    """It holds the holder's service."""
    turns: tuple[tuple[str, float], ...]
    """Services that would have to leave, or that use it while it holds the holder's, each with the end of its turn."""


@dataclass(slots=True)
class ChunkCache:
    """What follows from the state of a node's GPUs. Valid until the next change."""

    free: dict[int, list[FreeChunk]] = field(default_factory=dict)
    """Size -> free chunks, in order."""
    choices: dict[tuple[int, str, tuple[int, ...]], ChunkChoice | None] = field(default_factory=dict)
    """(Size, service, numbers) -> choice. A decision asks for one several times."""
    waits: dict[tuple[int, str, float], list[ChunkWait]] = field(default_factory=dict)
    """(Size, service, shortest turn) -> chunks for which a holder may wait."""
    records: EngineRecords | None = None
    units: int | None = None
    """Free GPUs that the node owns."""

    def clear(self) -> None:
        """Forget all."""
        self.free.clear()
        self.choices.clear()
        self.waits.clear()
        self.records = None
        self.units = None


CALLS_IN_TURN: Final = 4.0
"""Turn of a service beside another one that is resident too, in expected durations of its longest call: its end costs
no restore, but slots stand idle until the last call has ended."""


@dataclass(slots=True)
class BusyChunk:
    """A chunk that is in use, or was."""

    service: str
    since_s: float
    """First grant of the turn of its service."""
    holders: dict[str, float] = field(default_factory=dict)
    """Holder -> expected end of its use."""
    longest_s: float = 0.0
    """Longest expected use of a holder since then."""
    granted_s: float = -math.inf
    """Last grant."""

    def add(self, holder: str, now: float, begin_s: float, lasts_s: float) -> None:
        """Add a holder that is granted, and is expected to use it from `begin_s`, for `lasts_s`."""
        self.holders[holder], self.granted_s = begin_s + lasts_s, now
        self.longest_s = max(self.longest_s, lasts_s)

    def goes_on(self, service: str, now: float) -> bool:
        """Return whether a grant of a service after its end is of the same turn: the next call of a stream of calls."""
        return bool(service) and service == self.service and now <= self.granted_s + CALLS_IN_TURN * self.longest_s


def taken(former: dict[Chunk, BusyChunk], chunk: Chunk, service: str, now: float) -> BusyChunk:
    """Return a free chunk as a service takes it. Its turn goes on if no other service has used the chunk since.

    A grant that is undone in its round counts as a use, too.

    `former`: chunks that were in use, of which those that overlap are removed. O(former chunks).
    """
    before = former.get(chunk)
    for at in [at for at in former if at.overlaps(chunk)]:
        del former[at]
    return before if before is not None and before.goes_on(service, now) else BusyChunk(service, now)


def reported(
    gpus: int, busy: Mapping[Chunk, BusyChunk], used: int, units: int, service: str, numbers: tuple[int, ...]
) -> Chunk | None:
    """Return the chunk of a holder that its node reports; None if it contradicts the present busy chunks.

    Args:
        gpus: of the node.
        busy: its busy chunks.
        used: their GPUs as bits.
        units: GPUs of the holder.
        service: of the holder.
        numbers: its GPUs.
    """
    chunk = Chunk(min(numbers), units)
    if not chunk.is_on(gpus):
        return None
    own = tuple(chunk.gpus)
    if numbers != own and tuple(sorted(numbers)) != own:
        return None
    if (known := busy.get(chunk)) is not None:
        return chunk if service and known.service == service else None
    return None if chunk.mask & used else chunk


@lru_cache(maxsize=4096)
def free_levels(free: int, capacity: int, size: int, largest: int) -> tuple[tuple[int, Chunk], ...]:
    """Return the free chunks of one size on a node, each after the size of the free block around it: at most the
    largest degree. O(GPUs) for what was not asked before.

    Args:
        free: GPUs that may be granted, as bits.
        capacity: GPUs of the node.
        size: GPUs of a chunk.
        largest: largest degree.
    """
    found = []
    for chunk in aligned(capacity, size):
        if chunk.mask & ~free:
            continue
        level = size
        while level < largest:
            first = chunk.first - chunk.first % (2 * level)
            if first + 2 * level > capacity or Chunk(first, 2 * level).mask & ~free:
                break
            level *= 2
        found.append((level, chunk))
    return tuple(found)


def best_free(free: Iterable[FreeChunk], models: ModelResidency, service: str, size: int) -> ChunkChoice | None:
    """Return the best free chunk for a holder of a service; None: each is unusable. O(chunks); for each of them where
    an engine sleeps that lacks memory, as `ModelResidency.evict_s`.

    Args:
        free: chunks of this size, in their order.
        models: what the node's chunks hold.
        service: one of the node.
        size: GPUs of the chunk.
    """
    sleeps: ChunkChoice | None = None
    fits: ChunkChoice | None = None
    evicts: ChunkChoice | None = None
    one, held, lowest = models.served[service], models.chunks_of(service), 0
    unusable, asleep, needed_gb = one.unusable, one.asleep, one.gb(size) - ROUNDING_GB
    for level, used_s, chunk, room_gb in free:
        if chunk in unusable:
            continue
        if chunk in held:  # no later one is better: they are in order
            return ChunkChoice(1, False, level, False, 0.0, False, used_s, chunk)
        if lowest and level > lowest:
            if not held:
                break
            continue
        lowest = level
        lacks = room_gb < needed_gb
        if chunk in asleep:
            swap_s = asleep[chunk] + (models.evict_s(service, chunk) if lacks else 0.0)
            if sleeps is None or (swap_s, lacks) < (sleeps.swap_s, sleeps.evicts):
                sleeps = ChunkChoice(1, True, level, False, swap_s, lacks, used_s, chunk)
        elif lacks:
            evicts = evicts or ChunkChoice(1, True, level, True, 0.0, True, used_s, chunk)
        else:
            fits = fits or ChunkChoice(1, True, level, True, 0.0, False, used_s, chunk)
    return sleeps or fits or evicts
