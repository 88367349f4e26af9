"""Reads and trims of streams outside `Tail` and `Consumer`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis

from shared.bus.connection import command
from shared.messages.base import M, Topic
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE


async def newest(redis: Redis, topic: Topic[M], count: int, *, since_ms: int = 0) -> Iterator[tuple[Seconds, M]]:
    """Return (time, message) of the newest entries, newest first, decoded as they are iterated.

    Entries that cannot be decoded, of another version, are skipped. At most `count`, none from before `since_ms`.
    """
    return _decoded(topic, await command(redis, "XREVRANGE", topic.name, "+", since_ms, "COUNT", count))


async def last_id(redis: Redis, topic: Topic[Any]) -> str:
    """Return the id of the newest entry; "0" if there is none."""
    rows = await command(redis, "XREVRANGE", topic.name, "+", "-", "COUNT", 1)
    return rows[0][0].decode() if rows else "0"


async def trim_before(redis: Redis, topic: Topic[Any], ms: int) -> None:
    """Delete about all entries from before a time (Unix milliseconds, Valkey's clock)."""
    await command(redis, "XTRIM", topic.name, "MINID", "~", str(ms))


async def trim_through(redis: Redis, topic: Topic[Any], entry: str) -> None:
    """Delete the entries up to and including `entry`."""
    ms, _, seq = entry.partition("-")
    await command(redis, "XTRIM", topic.name, "MINID", f"{ms}-{int(seq) + 1}")


def _decoded(topic: Topic[M], rows: list[Any]) -> Iterator[tuple[Seconds, M]]:
    for entry, fields in rows:
        with suppress(*UNREADABLE):
            yield int(entry.partition(b"-")[0]) / 1000, topic.decode(fields[1])
