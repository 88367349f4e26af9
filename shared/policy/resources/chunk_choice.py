"""Orders of chunks for one holder."""

from __future__ import annotations

from typing import NamedTuple

from shared.policy.model.chunks import Chunk


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
