"""A lease on a key of Valkey: one of many processes does a thing, and everybody can see whether anybody does."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from redis.asyncio import Redis

from shared.bus.connection import command
from shared.units import Seconds


@dataclass(slots=True)
class Lease:
    """One holder's claim. It fences nothing: what is done under it must be harmless to do twice."""

    redis: Redis
    key: str
    ttl_s: Seconds
    """It lapses so long after the last `hold`."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def hold(self) -> bool:
        """Take it, or keep it for another `ttl_s`. False: another holds it."""
        ttl_ms = round(self.ttl_s * 1000)
        if await command(self.redis, "SET", self.key, self.holder, "NX", "PX", ttl_ms) is not None:
            return True
        if await command(self.redis, "GET", self.key) != self.holder.encode():
            return False
        return bool(await command(self.redis, "PEXPIRE", self.key, ttl_ms))

    async def let_go(self) -> None:
        """Give it back, if it is still ours."""
        if await command(self.redis, "GET", self.key) == self.holder.encode():
            await command(self.redis, "DEL", self.key)
