"""Wake-ups of the leader between two reads: at the time at which quotas of waiting work are refilled.

A blocking read cannot end at that time: Valkey looks for reads that are over only ten times a second while it is idle.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from services.proxy.leader.flushing import Flushing
from shared.bus.connection import ValkeyClock
from shared.runtime.units import Seconds

LEAST_S: Final[Seconds] = 0.005
"""Least time between two wake-ups. A refill is noticed at most this much late, and as long as a turn of the event loop
takes."""
MOST_UNREAD_S: Final[Seconds] = 1.5
"""Most time since the last read. A read returns within a second, except while Valkey is away. Then silence of nodes
must not count."""
AWAY_S: Final[Seconds] = 0.1
"""Pause while Valkey is away."""


class Wakeup:
    """Timer of one leader. Costs a comparison for each call of the dispatcher while no work waits for a refill."""

    def __init__(self, clock: ValkeyClock, flushing: Flushing | None = None) -> None:
        self._clock = clock
        self._flushing = flushing or Flushing()
        self._at = math.inf
        self._changed = asyncio.Event()

    def at(self, time_s: Seconds) -> None:
        """Set the time of the next wake-up, Valkey's clock; infinity: none."""
        if time_s != self._at:
            self._at = time_s
            self._changed.set()

    async def run(self, tick: Callable[[Seconds], None], last_read: Callable[[], Seconds]) -> None:
        """Call `tick` with the time now, at each time that was set and while Valkey is not away and no flush is late,
        until cancelled.
        """
        while True:
            self._changed.clear()
            wait_s = max(LEAST_S, self._at - self._clock.unix())
            try:
                async with asyncio.timeout(wait_s if math.isfinite(wait_s) else None):
                    await self._changed.wait()
            except TimeoutError:
                now = self._clock.unix()
                if now - last_read() <= MOST_UNREAD_S and not self._flushing.is_late:
                    tick(now)
                else:
                    await asyncio.sleep(AWAY_S)
