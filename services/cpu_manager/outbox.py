"""Outcomes on their way out: in order, in batches, for as long as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import patiently
from shared.messages.outcomes import OUTCOMES, Finished, Outcome

MOST_AT_ONCE = 256
GATHER_MOST = 16
"""Outcomes that gather at most while no core waits for what they would bring."""
GATHER_S = 0.01
"""And for how long."""


class Outbox:
    """What a node has to tell the leader. Bounded by what the node was granted: one outcome an attempt.

    While a flush is under way, new outcomes gather; they leave together with the next one. Nothing is dropped while
    Valkey is away: what cannot be told now is told later, and an inventory comes after what was finished before it.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.may_gather: Callable[[], bool] = lambda: False
        """True while the node has enough to do: outcomes then wait for each other a little, and each costs less."""
        self._waiting: list[Outcome] = []
        self._timer: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()
        self._flushing = asyncio.Lock()

    def put(self, outcome: Outcome) -> None:
        """Send this, after everything put before."""
        self._waiting.append(outcome)
        if not isinstance(outcome, Finished) or len(self._waiting) >= GATHER_MOST or not self.may_gather():
            self._more.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._more.set)

    def due(self) -> bool:
        """Something waits, and nothing more is waited for."""
        return self._more.is_set()

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._flushing:  # the last flush of a stopping node meets the loop's own
            while self._waiting:
                batch = self._waiting[:MOST_AT_ONCE]
                await self._send([OUTCOMES.encode(outcome) for outcome in batch])
                del self._waiting[: len(batch)]

    async def _send(self, payloads: list[bytes]) -> None:
        async def attempt() -> None:
            await functions.publish(self._redis, OUTCOMES.name, OUTCOMES.maxlen or 0, payloads)

        await patiently(attempt, what="reporting outcomes", patience_s=None)
