"""A lease on a key of Valkey: one of many processes does a task, and all can see whether there is a holder."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from redis.asyncio import Redis

from shared.bus.connection import command
from shared.bus.functions import call
from shared.runtime.units import Seconds


@dataclass(slots=True)
class Lease:
    """One holder's lease. It does not fence: work under it must be safe to do twice."""

    redis: Redis
    key: str
    ttl_s: Seconds
    """Time from the last `hold` until it expires."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def hold(self) -> bool:
        """Take the lease, or renew it for `ttl_s`, even when memory is full. False: another process holds it."""
        return bool(await call(self.redis, "hold_lease", self.key, self.holder, round(self.ttl_s * 1000)) == 1)

    async def release(self) -> None:
        """Release the lease if it is still ours."""
        if await command(self.redis, "GET", self.key) == self.holder.encode():
            await command(self.redis, "DEL", self.key)
