"""Regular measurement of the stores' disk."""

from __future__ import annotations

import asyncio
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.proxy.records.disk import StoreDisk
from shared.bus.memory import store_memory

MEASURE_S: Final = 1.0
"""Interval of measurements. A store that writes 100 MB/s uses a fifth of the default reserve in this time."""


async def watch_disk(disk: StoreDisk, redis: Redis) -> None:
    """Measure the disk every second. While Valkey is away, the last known size of its data set counts."""
    while disk.measurable:
        await asyncio.to_thread(disk.measure)
        try:
            async with asyncio.timeout(MEASURE_S):
                disk.data_set_bytes = (await store_memory(redis)).used_bytes
        except (RedisError, OSError, TimeoutError):
            pass  # keep the last known size
        await asyncio.sleep(MEASURE_S)
