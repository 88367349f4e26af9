"""What the leader sees of open batches, for the planner (Algorithm 2 of DistRS, §5.2).

It is no message: it lies in the field `batches` of the hash `backlog`, where the leader writes it over and over
(`shared.bus.seen` reads it).
"""

from __future__ import annotations

import sys
from array import array

import msgspec

from shared.runtime.units import Seconds

LOOKS_EVERY_S: Seconds = 0.5
"""How often the leader looks: what it tells is as old at most, as long as it lives."""


class BatchSeen(msgspec.Struct, frozen=True):
    """One batch's unanswered requests, by stage. Times are Unix seconds, float64 little-endian, packed."""

    queuing: list[bytes]
    """Pairs, of each request that waits for the stage (queued, or granted and without units yet): when it arrived at
    the door, and when it would have been here had it never queued."""
    running: list[bytes]
    """Triples, of each that holds units of the stage: the same two, and when it began there (or was granted)."""


class BatchesSeen(msgspec.Struct, frozen=True):
    """Every batch that had unanswered requests at one moment."""

    at: float
    """When the leader looked: Unix seconds, Valkey's clock. It holds until something else is told; the leader looks
    every `LOOKS_EVERY_S`."""
    batches: dict[str, BatchSeen]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BatchesSeen)


def encode(seen: BatchesSeen) -> bytes:
    """24 bytes a running request, 16 a queuing one."""
    return _encoder.encode(seen)


def decode(raw: bytes) -> BatchesSeen:
    """Read what `encode` wrote.

    Raises:
        msgspec.MsgspecError: it is of another version, or nothing of ours.
    """
    return _decoder.decode(raw)


def pack(times: array[float]) -> bytes:
    """Times as they are told."""
    if sys.byteorder == "big":
        times = array("d", times)
        times.byteswap()
    return times.tobytes()
