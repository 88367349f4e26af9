"""Declared tasks in Valkey, by tenant and name."""

from __future__ import annotations

from typing import NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command


class StoredTask(NamedTuple):
    """A declared task."""

    task: bytes
    """JSON."""
    version: int
    """Number of its declarations."""


async def put_task(redis: Redis, tenant: str, name: str, task: str) -> int:
    """Store a task. Return its version."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hincrby(keys.task(tenant, name), "version", 1)
        pipe.hset(keys.task(tenant, name), "task", task)
        pipe.sadd(keys.tasks(tenant), name)
        return int((await pipe.execute())[0])


async def read_task(redis: Redis, tenant: str, name: str) -> StoredTask | None:
    """Return a task; None if there is none of this name."""
    task, version = await command(redis, "HMGET", keys.task(tenant, name), "task", "version")
    return None if task is None or version is None else StoredTask(task, int(version))


async def task_names(redis: Redis, tenant: str) -> list[str]:
    """Return the names of a tenant's tasks, sorted."""
    return sorted(name.decode() for name in await command(redis, "SMEMBERS", keys.tasks(tenant)))


async def delete_task(redis: Redis, tenant: str, name: str) -> bool:
    """Delete a task. False: there was none."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.delete(keys.task(tenant, name))
        pipe.srem(keys.tasks(tenant), name)
        deleted, _ = await pipe.execute()
    return bool(deleted)
