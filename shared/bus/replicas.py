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


async def absent(redis: Redis, replicas: Iterable[str]) -> set[str]:
    """Return those of the replicas that are not alive."""
    named = list(replicas)
    found = await asyncio.gather(*(command(redis, "EXISTS", keys.replica(replica)) for replica in named))
    return {replica for replica, exists in zip(named, found, strict=True) if not exists}
