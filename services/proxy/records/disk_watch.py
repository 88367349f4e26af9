"""Measuring the disk of the stores, for as long as this replica lives."""

from __future__ import annotations

import asyncio
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.proxy.records.disk import StoreDisk
from shared.bus.memory import store_memory

MEASURE_S: Final = 1.0
"""Between two measurements. A store that writes 100 MB/s uses a fifth of the default reserve meanwhile."""


async def watch_disk(disk: StoreDisk, redis: Redis) -> None:
    """Measure the disk every second, also while Valkey is away: then the last known size of its data set counts."""
    while disk.measurable:
        await asyncio.to_thread(disk.measure)
        try:
            async with asyncio.timeout(MEASURE_S):
                disk.data_set_bytes = (await store_memory(redis)).used_bytes
        except (RedisError, OSError, TimeoutError):
            pass  # an answer of last time will do
        await asyncio.sleep(MEASURE_S)
