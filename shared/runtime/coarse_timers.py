"""Timers of one event loop that are cheap to set and to cancel, and fire a little late.

Most limits of a request are never reached. A timer of uvloop costs about 2 us each time; one of these costs a fifth of
it, because those that end within the same `TICK_S` share a timer of the loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from typing import Final

from shared.runtime.units import Seconds

TICK_S: Final[Seconds] = 0.05
"""Time by which a timer may be late."""


class CoarseTimer:
    """One timer."""

    __slots__ = ("_callback", "_tick")

    def __init__(self, tick: dict[CoarseTimer, None], callback: Callable[[], object]) -> None:
        self._tick = tick
        self._callback: Callable[[], object] | None = callback

    def cancel(self) -> bool:
        """Do not call it. Return whether it was neither called nor cancelled before. Safe to call again, and later."""
        self._tick.pop(self, None)
        callback, self._callback = self._callback, None
        return callback is not None

    def fire(self) -> None:
        """Call it now, unless it was cancelled or called."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class CoarseTimers:
    """Timers of one event loop. `after` and `cancel` are O(1), the first timer of a tick O(log ticks).

    A tick whose timers were all cancelled stays until its time, with the memory of the most timers that it had.
    Callbacks run in an empty context.
    """

    __slots__ = ("_next", "_ticks", "_times")

    def __init__(self) -> None:
        self._ticks: dict[int, dict[CoarseTimer, None]] = {}
        self._times: list[int] = []
        """The ticks that have timers, or had some: a heap."""
        self._next: tuple[int, asyncio.TimerHandle] | None = None
        """The tick for which the loop's timer is set."""

    def after(self, delay_s: Seconds, callback: Callable[[], object]) -> CoarseTimer:
        """Call this after `delay_s`, and up to `TICK_S` later."""
        loop = asyncio.get_running_loop()
        number = int((loop.time() + delay_s) / TICK_S) + 1
        tick = self._ticks.get(number)
        if tick is None:
            tick = self._ticks[number] = {}
            heapq.heappush(self._times, number)
            self._arm(loop)
        timer = CoarseTimer(tick, callback)
        tick[timer] = None
        return timer

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop's timer for the first tick."""
        if not self._times:
            return
        if self._next is not None:
            if self._next[0] <= self._times[0]:
                return
            self._next[1].cancel()
        self._next = self._times[0], loop.call_at(self._times[0] * TICK_S, self._fire, loop, context=Context())

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call the timers of the first tick. One that fails does not keep the others back."""
        self._next = None
        tick = self._ticks.pop(heapq.heappop(self._times))
        self._arm(loop)
        for timer in tick:
            loop.call_soon(timer.fire)
        tick.clear()
