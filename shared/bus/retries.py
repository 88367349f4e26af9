"""Actions of `/run_code` and `/retrieve` that wait for a retry of their caller, by the digest of the body."""

from __future__ import annotations

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.runtime.units import Seconds


async def leave_for_retry(redis: Redis, digest: str, action: str, keep_s: Seconds) -> None:
    """Append an action for a retry. The list expires after `keep_s`."""
    await command(redis, "RPUSH", keys.retries(digest), action)
    await command(redis, "PEXPIRE", keys.retries(digest), round(keep_s * 1000))


async def take_for_retry(redis: Redis, digest: str) -> str | None:
    """Remove and return the oldest action; None if there is none."""
    taken: bytes | None = await command(redis, "LPOP", keys.retries(digest))
    return None if taken is None else taken.decode()


async def withdraw(redis: Redis, digest: str, action: str) -> bool:
    """Remove this action. False: a retry has taken it, or it has expired."""
    return bool(await command(redis, "LREM", keys.retries(digest), 1, action))
