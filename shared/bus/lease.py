"""A lease on a key of Valkey: one of many processes does a thing, and everybody can see whether anybody does."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from redis.asyncio import Redis

from shared.bus.connection import command
from shared.bus.functions import call
from shared.runtime.units import Seconds


@dataclass(slots=True)
class Lease:
    """One holder's claim. It fences nothing: what is done under it must be harmless to do twice."""

    redis: Redis
    key: str
    ttl_s: Seconds
    """It lapses so long after the last `hold`."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def hold(self) -> bool:
        """Take it, or keep it for another `ttl_s`, also when memory is full. False: another holds it."""
        return bool(await call(self.redis, "hold_lease", self.key, self.holder, round(self.ttl_s * 1000)) == 1)

    async def let_go(self) -> None:
        """Give it back, if it is still ours."""
        if await command(self.redis, "GET", self.key) == self.holder.encode():
            await command(self.redis, "DEL", self.key)
