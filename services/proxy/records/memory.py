"""Valkey's memory as this replica last read it, and the part of it that one tenant's kept answers may take.

A tenant's bound is dynamic (Choudhury and Hahne 1998, thresholds for shared buffers): `TENANT_SHARE` times the free
memory. One tenant alone gets two thirds of the memory, two get two fifths each. Some always stays free for the next.
"""

from __future__ import annotations

import asyncio
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shared.bus.connection import TRANSIENT
from shared.bus.memory import StoreMemory, store_memory
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

READ_EVERY_S: Final[Seconds] = 1.0
TENANT_SHARE: Final = 2.0


class ValkeyMemory:
    """Used bytes and bound of Valkey's memory. Before the first read, and without a bound, nothing is rejected."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.now = StoreMemory(0, 0)

    @property
    def most_kept(self) -> int:
        """Bytes that the kept answers of one tenant may take; 0 without a bound, at least 1 with one."""
        if not self.now.bound_bytes:
            return 0
        return max(1, int(TENANT_SHARE * (self.now.bound_bytes - self.now.used_bytes)))

    async def read(self) -> None:
        """Read the memory use now."""
        self.now = await store_memory(self._redis)

    async def watch(self) -> None:
        """Read the memory use every second. Runs until cancelled. `INFO memory` takes Valkey 0.1 ms."""
        while True:
            try:
                await self.read()
            except (*TRANSIENT, ResponseError) as error:
                _log.debug("reading_valkey_memory_failed", error=str(error))
            await asyncio.sleep(READ_EVERY_S)
