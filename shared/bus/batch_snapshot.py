"""Reads of open batches for the planner: the leader's last snapshot of their requests, and their counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.messages import batch_snapshot
from shared.messages.batch_snapshot import OpenBatchesSnapshot
from shared.runtime.validation import UNREADABLE


async def read_snapshot(redis: Redis) -> OpenBatchesSnapshot | None:
    """Return the last snapshot of every batch's unanswered requests. None: not published, or by a leader of another
    version.
    """
    raw = await command(redis, "HGET", keys.BACKLOG, "batches")
    try:
        return batch_snapshot.decode(raw) if raw is not None else None
    except UNREADABLE:
        return None


class BatchCounts(NamedTuple):
    """Counts of a batch's requests."""

    submitted: int
    answered: int
    closed: bool
    """No more requests can come: the batch was sealed or has ended."""
    unqueued_end_s: float | None = None
    """Time at which the last answered request would have finished without queueing, Unix seconds; None: none is."""


async def read_counts(redis: Redis, batches: Sequence[str]) -> list[BatchCounts | None]:
    """Return the counts of each batch, in one round trip; None for an unknown or expired one."""
    if not batches:
        return []
    pipe = redis.pipeline(transaction=False)
    for batch in batches:
        pipe.hmget(keys.batch(batch), ["submitted", "answered", "state", "unqueued_end_ms"])
    rows = await pipe.execute()
    return [
        None
        if submitted is None
        else BatchCounts(
            int(submitted), int(answered or 0), state != b"open", int(ended_ms) / 1000 if ended_ms else None
        )
        for submitted, answered, state, ended_ms in rows
    ]
