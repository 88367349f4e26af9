"""Orders of chunks for one holder."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.policy.model.chunks import Chunk
from shared.policy.resources.engine_records import EngineRecords


class ChunkChoice(NamedTuple):
    """Chunk for a holder, with what is better about it first. Smaller is better; comparable between nodes."""

    joins: int
    """0: it joins a busy chunk of its service; 1: it gets a chunk of its own."""
    level: int
    """Size of the free block that is split for it, at most the largest degree; 0 if it joins."""
    restores: bool
    """Its service has to be restored there."""
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


@dataclass(slots=True)
class ChunkCache:
    """What follows from the state of a node's GPUs. Valid until the next change."""

    free: dict[int, list[FreeChunk]] = field(default_factory=dict)
    """Size -> free chunks, in order."""
    choices: dict[tuple[int, str, tuple[int, ...]], ChunkChoice | None] = field(default_factory=dict)
    """(Size, service, numbers) -> choice. A decision asks for one several times."""
    records: EngineRecords | None = None
    units: int | None = None
    """Free GPUs that the node owns."""

    def clear(self) -> None:
        """Forget all."""
        self.free.clear()
        self.choices.clear()
        self.records = None
        self.units = None


@dataclass(slots=True)
class BusyChunk:
    """A chunk that is in use."""

    service: str
    holders: dict[str, float]
    """Holder -> expected end of its use."""


def free_level(chunk: Chunk, free: int, capacity: int, largest: int) -> int:
    """Return the size of the free block around a chunk of a node, at most the largest degree. `free`: GPUs, as bits."""
    size = chunk.size
    while size < largest:
        first = chunk.first - chunk.first % (2 * size)
        if first + 2 * size > capacity or Chunk(first, 2 * size).mask & ~free:
            break
        size *= 2
    return size


def best_free(
    free: Iterable[FreeChunk], held: AbstractSet[Chunk], unusable: AbstractSet[Chunk], needed_gb: float
) -> ChunkChoice | None:
    """Return the best free chunk for a holder of a service; None: each is unusable.

    Args:
        free: in their order.
        held: chunks that hold the service.
        unusable: chunks where its engine is quarantined.
        needed_gb: memory of each GPU that an engine needs.
    """
    fits: ChunkChoice | None = None
    evicts: ChunkChoice | None = None
    lowest = 0
    for level, used_s, chunk, room_gb in free:
        if lowest and level > lowest:
            break
        if chunk in unusable:
            continue
        lowest = level
        if chunk in held:  # no later one is better: they are in order
            return ChunkChoice(1, level, False, False, used_s, chunk)
        if room_gb >= needed_gb:
            fits = fits or ChunkChoice(1, level, True, False, used_s, chunk)
        else:
            evicts = evicts or ChunkChoice(1, level, True, True, used_s, chunk)
    return fits or evicts
