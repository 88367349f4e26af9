"""The pace of one trajectory: a token bucket without a timer."""

from __future__ import annotations

import asyncio

from shared.runtime.units import Seconds


class Pace:
    """Delays what comes faster than `rate` a second, after a burst. It costs the forwarder no more than that."""

    def __init__(self, rate: float, burst: int) -> None:
        self._interval_s: Seconds = 1.0 / rate
        self._slack_s: Seconds = burst / rate
        self._next_s: Seconds = float("-inf")

    async def turn(self) -> None:
        """Return when the next one may go on."""
        now = asyncio.get_running_loop().time()
        self._next_s = max(self._next_s, now - self._slack_s) + self._interval_s
        if self._next_s > now:
            await asyncio.sleep(self._next_s - now)
