"""Reports of engines that have become resident: they leave after the calls that wait for them.

Law: another change is reported at once, because the leader must know of it before it reads what has become of the
actions of that engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from shared.runtime.units import Seconds

REPORTED_AFTER_S: Final[Seconds] = 0.005
"""Delay of a report of `SERVED` engines. One report has all changes of that time."""
SERVED: Final = frozenset({"resident", "running"})


class DelayedReport:
    """A report, sent once for all engines that become resident in `REPORTED_AFTER_S`."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._timer: asyncio.TimerHandle | None = None

    def changed(self, state: str) -> None:
        """Report that an engine has a new state: now, or soon if actions may use it."""
        if state not in SERVED:
            if self._timer is not None:
                self._timer.cancel()
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORTED_AFTER_S, self._send)

    def _send(self) -> None:
        self._timer = None
        self._report()
