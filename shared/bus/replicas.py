"""Presence of the proxy's replicas. Each renews a key that expires by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.runtime.units import Seconds


async def renew(redis: Redis, replica: str, ttl_s: Seconds) -> None:
    """Record that the replica is alive for `ttl_s`, even when memory is full."""
    await call(redis, "renew_presence_v1", (keys.replica(replica),), round(ttl_s * 1000))


async def left_s(redis: Redis, replicas: Iterable[str]) -> dict[str, Seconds]:
    """Return for each replica the seconds for which it is alive without a renewal; 0 if it is not alive."""
    named = list(replicas)
    found = await asyncio.gather(*(command(redis, "PTTL", keys.replica(replica)) for replica in named))
    return {replica: max(0, left_ms) / 1000 for replica, left_ms in zip(named, found, strict=True)}
