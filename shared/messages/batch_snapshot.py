"""The leader's snapshot of open batches, for the planner (Algorithm 2 of DistRS, §5.2).

It is not a message. The leader overwrites it in the field `batches` of the hash `backlog`.
`shared.bus.batch_snapshot` reads it.
"""

from __future__ import annotations

import sys
from array import array

import msgspec

from shared.runtime.units import Seconds

SNAPSHOT_INTERVAL_S: Seconds = 0.5
"""Snapshot interval. While a leader is alive, a snapshot is at most this old."""


class UnansweredRequests(msgspec.Struct, frozen=True):
    """One batch's unanswered requests, by stage. Times are packed Unix seconds, float64 little-endian."""

    queuing: list[bytes]
    """Pairs, one for each request that waits for the stage (queued, or granted without units yet): when it arrived at
    the proxy, and when it would have arrived at this stage without queueing."""
    running: list[bytes]
    """Triples, one for each request with units of the stage: the same two, and when it began there (or was granted)."""


class OpenBatchesSnapshot(msgspec.Struct, frozen=True):
    """Every batch with unanswered requests at one time."""

    at: float
    """Time of the snapshot: Unix seconds, Valkey's clock. It is valid until another one is published; the leader
    compares every `SNAPSHOT_INTERVAL_S`."""
    batches: dict[str, UnansweredRequests]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(OpenBatchesSnapshot)


def encode(snapshot: OpenBatchesSnapshot) -> bytes:
    """Encode a snapshot: 24 bytes per running request, 16 per queuing one."""
    return _encoder.encode(snapshot)


def decode(raw: bytes) -> OpenBatchesSnapshot:
    """Decode what `encode` wrote.

    Raises:
        msgspec.MsgspecError: it is of another version, or not a snapshot.
    """
    return _decoder.decode(raw)


def pack(times: array[float]) -> bytes:
    """Return times as the snapshot stores them."""
    if sys.byteorder == "big":
        times = array("d", times)
        times.byteswap()
    return times.tobytes()
