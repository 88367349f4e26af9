"""Reports of residencies that leave after the calls that wait for an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from shared.runtime.units import Seconds

REPORTED_AFTER_S: Final[Seconds] = 0.005
"""Delay of a report: calls that wait for an engine are sent first, and one report has all changes of that time."""


class DelayedReport:
    """A report that is sent once for all changes of `REPORTED_AFTER_S`."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Let the report be sent soon."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORTED_AFTER_S, self._send)

    def _send(self) -> None:
        self._timer = None
        self._report()
