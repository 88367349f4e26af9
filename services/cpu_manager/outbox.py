"""Outcomes on their way out: in order, in batches, for as long as it takes."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import patiently
from shared.messages.outcomes import OUTCOMES, Finished, InventoryTaken, Outcome, Started

MOST_AT_ONCE = 256


class Outbox:
    """What a node has to tell the leader. Bounded by what the node was granted: one outcome an attempt.

    While a flush is under way, new outcomes gather; they leave together with the next one. Nothing is dropped while
    Valkey is away: what cannot be told now is told later, and an inventory comes after what was finished before it.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: list[Outcome] = []
        self._more = asyncio.Event()
        self._flushing = asyncio.Lock()

    def put(self, outcome: Started | Finished | InventoryTaken) -> None:
        """Send this, after everything put before."""
        self._waiting.append(outcome)
        self._more.set()

    def ready(self) -> bool:
        """True while nothing is stuck."""
        return len(self._waiting) < 16 * MOST_AT_ONCE

    async def run(self) -> None:
        """Flush for ever."""
        while True:
            await self._more.wait()
            self._more.clear()
            await self.flush()

    async def flush(self) -> None:
        """Send all there is, `MOST_AT_ONCE` a round trip; outcomes stay in the box until Valkey has them on disk."""
        async with self._flushing:  # the last flush of a stopping node meets the loop's own
            while self._waiting:
                batch = self._waiting[:MOST_AT_ONCE]
                await self._send([OUTCOMES.encode(outcome) for outcome in batch])
                del self._waiting[: len(batch)]

    async def _send(self, payloads: list[bytes]) -> None:
        async def attempt() -> None:
            await functions.publish(self._redis, OUTCOMES.name, OUTCOMES.maxlen or 0, payloads)

        await patiently(attempt, what="reporting outcomes", patience_s=None)
