"""Presence and addresses of the trajectory router's replicas. Each renews its own, and it expires by itself."""

from __future__ import annotations

import asyncio
from typing import Final

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.runtime.units import Seconds

KEPT_MS: Final = 60_000
"""Time after which the entry of a replica that is gone is removed."""
FRESH_S: Final[Seconds] = 1.0


async def renew(redis: Redis, replica: str, url: str, ttl_s: Seconds) -> None:
    """Record that a replica is alive for `ttl_s` and answers at this address."""
    pipe = redis.pipeline(transaction=False)
    seconds, micros = await command(redis, "TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    pipe.zadd(keys.ROUTERS, {f"{replica} {url}": now_ms + round(ttl_s * 1000)})
    pipe.zremrangebyscore(keys.ROUTERS, "-inf", now_ms - KEPT_MS)
    await pipe.execute()


async def leave(redis: Redis, replica: str, url: str) -> None:
    """Record that a replica ends."""
    await command(redis, "ZREM", keys.ROUTERS, f"{replica} {url}")


async def present(redis: Redis) -> dict[str, str]:
    """Return the address of each replica that is alive, those that renewed last first."""
    seconds, micros = await command(redis, "TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    members = await command(redis, "ZREVRANGEBYSCORE", keys.ROUTERS, "+inf", now_ms)
    pairs = (member.decode().partition(" ") for member in members)
    return {replica: url for replica, _, url in pairs}


class RouterAddress:
    """Address of a router that is alive, as one process knows it."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._read_s = -FRESH_S
        self._url: str | None = None

    async def address(self) -> str | None:
        """Return the address of a router; None if none runs. At most `FRESH_S` old."""
        now = asyncio.get_running_loop().time()
        if now - self._read_s >= FRESH_S:
            self._url = next(iter((await present(self._redis)).values()), None)
            self._read_s = now
        return self._url
