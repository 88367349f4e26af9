"""Actions that were named by calls with which terms of leaders have failed, in Valkey."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command

KEPT_S: Final = 3600
"""Seconds for which failed terms are counted, after the last one."""


async def count_failed_term(redis: Redis, actions: Iterable[str]) -> None:
    """Count one more failed term for each action. O(actions), one round trip."""
    pipe = redis.pipeline(transaction=True)
    for action in actions:
        pipe.hincrby(keys.SUSPECTS, action, 1)
    pipe.expire(keys.SUSPECTS, KEPT_S)
    await pipe.execute()


async def read_failed_terms(redis: Redis) -> dict[str, int]:
    """Return action -> failed terms."""
    flat = await command(redis, "HGETALL", keys.SUSPECTS)
    return {action.decode(): int(count) for action, count in zip(flat[::2], flat[1::2], strict=True)}
