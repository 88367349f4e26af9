"""Typed doors to the server-side functions in `archive.lua`: what is left in Valkey of answers that are in Postgres.

All are atomic and safe to repeat. Whoever archives copies the answers first, commits, and calls these last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis.asyncio import Redis

from shared.bus.connection import command
from shared.bus.functions import call
from shared.runtime.units import Seconds

UNARCHIVED = "unarchived"
UNARCHIVED_ACTIONS = "unarchived:actions"
ARCHIVED = "archived"
EXPIRING = "expiring"
ID_READ_AT_ONCE = 512


class BatchKey(NamedTuple):
    """A batch in the indexes: `tenant/batch`."""

    tenant: str
    batch: str

    @classmethod
    def of(cls, member: bytes) -> BatchKey:
        """From a member of an index."""
        tenant, _, batch = member.decode().partition("/")
        return cls(tenant, batch)


class Result(NamedTuple):
    """One entry of a batch's stream of results."""

    cursor: str
    answer: bytes


class Alone(NamedTuple):
    """An answer outside batches that is to be archived."""

    listed: str
    """Its entry in the index."""
    action: str
    size: str
    """Bytes that it takes in Valkey, as the index has it."""
    tenant: str
    entry: str = ""
    """Journal entry of the action; empty where the answer is in Valkey no more."""
    answer: bytes = b""
    left_s: Seconds = 0.0
    """Until the answer expires."""


def numeric(cursor: str) -> tuple[int, int]:
    """A stream id as numbers, so that 9-0 comes before 10-0."""
    ms, _, seq = cursor.partition("-")
    return int(ms), int(seq)


async def due_batches(redis: Redis, until_ms: int, most: int) -> list[BatchKey]:
    """Batches with results in Valkey from before a moment, oldest first."""
    members = await command(redis, "ZRANGEBYSCORE", UNARCHIVED, "-inf", until_ms, "LIMIT", 0, most)
    return [BatchKey.of(member) for member in members]


async def due_results(redis: Redis, key: BatchKey, until_ms: int | None, most: int, most_bytes: int) -> list[Result]:
    """The oldest results of a batch in Valkey, in order; about `most_bytes` at most, and one. `until_ms`: from before
    this moment.
    """
    stream = f"results:{key.batch}"
    kept = await command(redis, "HGET", "kept:batches", "/".join(key))
    length = await command(redis, "XLEN", stream)
    if length and kept is not None:
        most = max(1, min(most, most_bytes * length // max(1, int(kept))))
    rows = await command(redis, "XRANGE", stream, "-", "+" if until_ms is None else until_ms, "COUNT", most)
    return [Result(row.decode(), fields[1]) for row, fields in rows]


async def archive_results(redis: Redis, key: BatchKey, actions: Sequence[tuple[str, int]], last: str = "0-0") -> int:
    """Replace results that are in Postgres by compact ids. Returns how many ids were made.

    Args:
        redis: where.
        key: the batch.
        actions: (action, length of its answer) of every result up to `last`; none: look at the batch anew.
        last: cursor of the last of them.
    """
    ms, seq = numeric(last)
    flat = [part for pair in actions for part in pair]
    return int(await call(redis, "archive_results", *key, last, f"{ms}-{seq + 1}", *flat))


async def due_actions(redis: Redis, until_ms: int, most: int, most_bytes: int) -> list[Alone]:
    """The oldest answers outside batches from before a moment, and index entries of those that have expired; about
    `most_bytes` at most, and one.
    """
    rows = await command(redis, "XRANGE", UNARCHIVED_ACTIONS, "-", until_ms, "COUNT", most)
    listed: list[Alone] = []
    for entry, fields in rows:
        one = Alone(entry.decode(), *(fields[at].decode() for at in (1, 3, 5)))
        most_bytes -= int(one.size)
        if listed and most_bytes < 0:
            break
        listed.append(one)
    pipe = redis.pipeline(transaction=False)
    for one in listed:
        pipe.hmget(f"action:{one.action}", ["e", "a"])
        pipe.pttl(f"action:{one.action}")
    replies = await pipe.execute() if listed else []
    found: list[Alone] = []
    for one, (entry, answer), left_ms in zip(listed, replies[::2], replies[1::2], strict=True):
        if answer is None:
            found.append(one)
        else:
            found.append(one._replace(entry=entry.decode(), answer=answer, left_s=left_ms / 1000))
    return found


async def archive_actions(redis: Redis, actions: Sequence[Alone]) -> int:
    """Free answers that are in Postgres (or have expired); their keys stay as compact ids. Returns how many."""
    flat = [part for one in actions for part in (one.listed, one.action, one.entry, one.size, one.tenant)]
    return int(await call(redis, "archive_actions", *flat))


async def expire_kept(redis: Redis) -> int:
    """Take compact ids that have expired out of the tenants' accounts. Returns the minutes that were settled."""
    return int(await call(redis, "expire_kept"))


async def release_batch(redis: Redis, key: BatchKey) -> bool:
    """Forget a batch that has expired and of which nothing is in Postgres. False: it is there."""
    return bool(await call(redis, "release_batch", *key) == 1)


async def expired_batches(redis: Redis, index: str) -> list[BatchKey]:
    """Batches of an index (`UNARCHIVED`, `ARCHIVED`) that have expired in Valkey. O(batches in it)."""
    gone: list[BatchKey] = []
    cursor = b"0"
    while True:
        cursor, flat = await command(redis, "ZSCAN", index, cursor, "COUNT", ID_READ_AT_ONCE)
        keys = [BatchKey.of(member) for member in flat[::2]]
        pipe = redis.pipeline(transaction=False)
        for key in keys:
            pipe.exists(f"batch:{key.batch}")
        there = await pipe.execute() if keys else []
        gone += [key for key, exists in zip(keys, there, strict=True) if not exists]
        if cursor == b"0":
            return gone


async def kept(redis: Redis) -> dict[str, int]:
    """Tenant -> bytes of Valkey's memory that its answers and compact ids take."""
    flat = await command(redis, "HGETALL", "kept")
    return {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}
