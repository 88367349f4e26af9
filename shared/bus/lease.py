"""Leases of roles. One process at a time has a role, and all can see whether one has. Its epoch fences its writes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.keys import Role
from shared.runtime import log
from shared.runtime.process_names import has_ended, process_name
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

RENEWED: Final = 0.6
"""Share of its time that a lease of a living holder has left: it is renewed three times in it."""


@dataclass(slots=True)
class Lease:
    """One process's lease of a role. Functions that take an epoch reject the writes of earlier holders (`Deposed`)."""

    redis: Redis
    role: Role
    ttl_s: Seconds
    """Time from the last `hold` until it expires."""
    holder: str = field(default_factory=process_name)

    async def hold(self) -> Epoch:
        """Take the lease, or renew it for `ttl_s`, even when memory is full.

        Return the epoch, which a new holder raises by one; 0 while another process holds the lease. A holder that has
        ended on this machine holds it until it has missed a renewal.
        """
        epoch = await self._hold()
        return await self._hold() if not epoch and await self.is_free() else epoch

    async def is_free(self) -> bool:
        """Return whether no process holds the lease. One that has ended is removed from it."""
        key = keys.leader(self.role)
        holder, left_ms = await asyncio.gather(command(self.redis, "GET", key), command(self.redis, "PTTL", key))
        if holder is None:
            return True
        name = holder.decode()
        if left_ms > RENEWED * 1000 * self.ttl_s or name == self.holder or not has_ended(name):
            return False
        await call(self.redis, "release_lease_v1", (key,), name)
        _log.warning("holder_has_ended", role=self.role, left_s=round(left_ms / 1000, 1))
        return True

    async def _hold(self) -> Epoch:
        touched = (keys.leader(self.role), keys.epoch(self.role))
        return int(await call(self.redis, "hold_lease_v2", touched, self.holder, round(self.ttl_s * 1000)))

    async def release(self) -> None:
        """Release the lease if it is still ours."""
        await call(self.redis, "release_lease_v1", (keys.leader(self.role),), self.holder)


async def is_held(redis: Redis, role: Role) -> bool:
    """Return whether a process has the role."""
    return bool(await command(redis, "EXISTS", keys.leader(role)) == 1)


async def read_epoch(redis: Redis, role: Role) -> Epoch:
    """Return the epoch of the newest holder of a role; 0 if there was none."""
    return int(await command(redis, "GET", keys.epoch(role)) or 0)
