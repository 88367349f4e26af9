"""Typed calls of the server-side functions in `library/archive.lua`, about answers that are in Postgres.

All are atomic and safe to repeat. The archiver copies the answers first, commits, and then calls these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.keys import KeyList

ID_READ_AT_ONCE = 512
MINUTES_AT_ONCE = 100


class BatchKey(NamedTuple):
    """A batch in the indexes: `tenant/batch`."""

    tenant: str
    batch: str

    @classmethod
    def of(cls, member: bytes) -> BatchKey:
        """Return the key of an index member."""
        tenant, _, batch = member.decode().partition("/")
        return cls(tenant, batch)


class StoredResult(NamedTuple):
    """One entry of a batch's stream of results."""

    cursor: str
    answer: bytes


class DueAnswer(NamedTuple):
    """An answer outside batches that is due for archiving."""

    listed: str
    """Its entry in the index."""
    action: str
    size: str
    """Its bytes in Valkey, as recorded in the index."""
    tenant: str
    entry: str = ""
    """Journal entry of the action; empty if Valkey no longer has the answer."""
    answer: bytes = b""
    expires_at: float = 0.0
    """Unix seconds at which the answer expires in Valkey."""


def _of(batch: str) -> tuple[str, ...]:
    """Return the keys of the archive's functions for one batch."""
    record, results, archived, _ = keys.batch_group(batch)
    return (keys.KEPT, keys.KEPT_BATCHES, keys.UNARCHIVED, keys.ARCHIVED, record, results, archived)


def _action(name: str) -> tuple[str]:
    return (keys.action(name),)


def _minute(minute: str) -> tuple[str]:
    return (keys.expiring(int(minute)),)


def numeric(cursor: str) -> tuple[int, int]:
    """Return a stream id as numbers, so that 9-0 is less than 10-0."""
    ms, _, seq = cursor.partition("-")
    return int(ms), int(seq)


async def due_batches(redis: Redis, until_ms: int, most: int) -> list[BatchKey]:
    """Return batches with results in Valkey from before `until_ms`, oldest first."""
    members = await command(redis, "ZRANGEBYSCORE", keys.UNARCHIVED, "-inf", until_ms, "LIMIT", 0, most)
    return [BatchKey.of(member) for member in members]


async def due_results(
    redis: Redis, key: BatchKey, until_ms: int | None, most: int, most_bytes: int
) -> list[StoredResult]:
    """Return the oldest results of a batch in Valkey, in order: about `most_bytes` at most, and at least one.

    `until_ms`: only results from before this time.
    """
    stream = keys.results(key.batch)
    kept = await command(redis, "HGET", keys.KEPT_BATCHES, "/".join(key))
    length = await command(redis, "XLEN", stream)
    if length and kept is not None:
        most = max(1, min(most, most_bytes * length // max(1, int(kept))))
    rows = await command(redis, "XRANGE", stream, "-", "+" if until_ms is None else until_ms, "COUNT", most)
    return [StoredResult(row.decode(), fields[1]) for row, fields in rows]


async def archive_results(redis: Redis, key: BatchKey, actions: Sequence[tuple[str, int]], last: str = "0-0") -> int:
    """Replace results that are in Postgres by compact ids. Return how many ids were created.

    Args:
        redis: the client.
        key: the batch.
        actions: (action, length of its answer) of every result up to `last`; none: check again whether it has expired.
        last: cursor of the last of these results.
    """
    ms, seq = numeric(last)
    touched = (*_of(key.batch), *(keys.action(action) for action, _ in actions))
    lengths = (length for _, length in actions)
    return int(await call(redis, "archive_results_v2", touched, key.tenant, last, f"{ms}-{seq + 1}", *lengths))


async def due_actions(redis: Redis, until_ms: int, most: int, most_bytes: int) -> list[DueAnswer]:
    """Return the oldest answers outside batches from before `until_ms`: about `most_bytes` at most, and at least one.

    Index entries of expired answers are included.
    """
    rows = await command(redis, "XRANGE", keys.UNARCHIVED_ACTIONS, "-", until_ms, "COUNT", most)
    listed: list[DueAnswer] = []
    for entry, fields in rows:
        one = DueAnswer(entry.decode(), *(fields[at].decode() for at in (1, 3, 5)))
        most_bytes -= int(one.size)
        if listed and most_bytes < 0:
            break
        listed.append(one)
    pipe = redis.pipeline(transaction=False)
    for one in listed:
        pipe.hmget(keys.action(one.action), ["entry", "answer"])
        pipe.pexpiretime(keys.action(one.action))
    replies = await pipe.execute() if listed else []
    found: list[DueAnswer] = []
    for one, (entry, answer), expires_ms in zip(listed, replies[::2], replies[1::2], strict=True):
        if answer is None:
            found.append(one)
        else:
            found.append(one._replace(entry=entry.decode(), answer=answer, expires_at=expires_ms / 1000))
    return found


async def archive_actions(redis: Redis, actions: Sequence[DueAnswer]) -> int:
    """Free answers that are in Postgres or have expired. Their keys stay as compact ids. Return how many."""
    touched = KeyList(keys.KEPT, keys.UNARCHIVED_ACTIONS, keys.EXPIRING)
    args: list[str | int] = []
    for one in actions:
        action = touched.position(one.action, _action)
        minute = touched.position(str(math.ceil(one.expires_at / 60)), _minute) if one.entry else 0
        args += (one.listed, action, one.entry, one.size, one.tenant, minute)
    return int(await call(redis, "archive_actions_v2", touched.listed, *args))


async def expire_kept(redis: Redis) -> int:
    """Subtract expired compact ids from the tenants' accounts. Return how many minutes were processed."""
    seconds, _ = await command(redis, "TIME")
    past = int(seconds) // 60 - 1
    minutes = await command(redis, "ZRANGEBYSCORE", keys.EXPIRING, "-inf", past, "LIMIT", 0, MINUTES_AT_ONCE)
    touched = (keys.KEPT, keys.EXPIRING, *(keys.expiring(int(minute)) for minute in minutes))
    return int(await call(redis, "expire_kept_v2", touched)) if minutes else 0


async def release_batch(redis: Redis, key: BatchKey) -> bool:
    """Delete the records of an expired batch that has nothing in Postgres. False: the batch exists."""
    return bool(await call(redis, "release_batch_v2", _of(key.batch), key.tenant) == 1)


async def expired_batches(redis: Redis, index: str) -> list[BatchKey]:
    """Return batches of an index (`keys.UNARCHIVED`, `keys.ARCHIVED`) that have expired. O(batches in the index)."""
    gone: list[BatchKey] = []
    cursor = b"0"
    while True:
        cursor, flat = await command(redis, "ZSCAN", index, cursor, "COUNT", ID_READ_AT_ONCE)
        members = [BatchKey.of(member) for member in flat[::2]]
        pipe = redis.pipeline(transaction=False)
        for key in members:
            pipe.exists(keys.batch(key.batch))
        there = await pipe.execute() if members else []
        gone += [key for key, exists in zip(members, there, strict=True) if not exists]
        if cursor == b"0":
            return gone


async def kept(redis: Redis) -> dict[str, int]:
    """Return {tenant: bytes of Valkey's memory of its answers and compact ids}."""
    flat = await command(redis, "HGETALL", keys.KEPT)
    return {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}


async def has_archived(redis: Redis) -> bool:
    """Return whether Postgres may have answers."""
    return bool(await command(redis, "EXISTS", keys.ARCHIVED, keys.EXPIRING))


async def read_results(
    redis: Redis, batch: str, after: str, count: int
) -> tuple[list[StoredResult], bytes | None, str | None]:
    """Return at most `count` results in Valkey after a cursor (empty: from the first); then the batch's state and its
    last archived cursor, both read after the results. None: there is none.

    Raises:
        ResponseError: `after` is not a cursor.
    """
    rows = await command(redis, "XRANGE", keys.results(batch), f"({after}" if after else "-", "+", "COUNT", count)
    state, archived = await command(redis, "HMGET", keys.batch(batch), "state", "archived")
    young = [StoredResult(row.decode(), fields[1]) for row, fields in rows]
    return young, state, None if archived is None else archived.decode()
