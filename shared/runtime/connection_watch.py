"""Watch of a client's connection while its request is handled, without a task for each short request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from shared.runtime.coarse_timers import CoarseTimer, CoarseTimers
from shared.runtime.units import Seconds

WATCHED_AFTER_S: Final[Seconds] = 0.05
"""Time after which a connection is watched. Most requests are answered before."""


class ConnectionWatch:
    """Context in which the end of a connection is noticed, some `WATCHED_AFTER_S` late. Costs one timer, and a task
    for requests that take longer.
    """

    __slots__ = ("_beginning", "_ended", "_gone", "_task", "_timers", "gone")

    def __init__(self, gone: Callable[[], Awaitable[None]], ended: Callable[[], object], timers: CoarseTimers) -> None:
        """Compose it.

        Args:
            gone: returns when the connection has ended.
            ended: called then, once.
            timers: of the running event loop.
        """
        self._timers = timers
        self._gone = gone
        self._ended = ended
        self._beginning: CoarseTimer | None = None
        self._task: asyncio.Task[None] | None = None
        self.gone = False
        """The connection has ended."""

    def __enter__(self) -> ConnectionWatch:
        self._beginning = self._timers.after(WATCHED_AFTER_S, self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._run(), name="client of a request")

    async def _run(self) -> None:
        await self._gone()
        self.gone = True
        self._ended()
