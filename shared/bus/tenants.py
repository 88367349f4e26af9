"""Weights of tenants: kept without a limit in time, and read by the leader.

A counter is raised with each change, in the same transaction. So a leader that looks for changes reads one number.
"""

from __future__ import annotations

from redis.asyncio import Redis

from shared.bus.connection import command, with_retries
from shared.bus.keys import TENANT_CHANGES, TENANTS


async def set_weight(redis: Redis, tenant: str, weight: float) -> None:
    """Set a tenant's weight."""
    await _change(redis, ("HSET", TENANTS, tenant, repr(weight)))


async def delete_weight(redis: Redis, tenant: str) -> None:
    """Delete a tenant's weight: the default applies again."""
    await _change(redis, ("HDEL", TENANTS, tenant))


async def _change(redis: Redis, change: tuple[str, ...]) -> None:
    async def write() -> None:
        async with redis.pipeline(transaction=True) as pipe:
            pipe.execute_command(*change)
            pipe.incr(TENANT_CHANGES)
            await pipe.execute()

    await with_retries(write, what="storing a tenant's weight", limit_s=10.0)


async def read_weight(redis: Redis, tenant: str) -> float | None:
    """Return a tenant's weight; None: it was not set."""
    weight: bytes | None = await command(redis, "HGET", TENANTS, tenant)
    return None if weight is None else float(weight)


async def count_weights(redis: Redis) -> int:
    """Return the number of tenants whose weight was set."""
    return int(await command(redis, "HLEN", TENANTS))


async def read_weights(redis: Redis) -> dict[str, float]:
    """Return all weights that were set, by tenant."""
    flat: list[bytes] = await command(redis, "HGETALL", TENANTS)
    return {tenant.decode(): float(weight) for tenant, weight in sorted(zip(flat[::2], flat[1::2], strict=True))}


async def count_changes(redis: Redis) -> int:
    """Return the number of changes so far. Read it before the weights, so that no change is missed."""
    return int(await command(redis, "GET", TENANT_CHANGES) or 0)
