"""Time as an argument: services take a `Clock`, tests hand them one they move by hand."""

from __future__ import annotations

import time
from typing import Protocol

from shared.runtime.units import Seconds


class Clock(Protocol):
    """Monotonic seconds for durations and deadlines; Unix seconds for what people and tables read."""

    def monotonic(self) -> Seconds: ...

    def unix(self) -> Seconds: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> Seconds:
        return time.monotonic()

    def unix(self) -> Seconds:
        return time.time()


SYSTEM_CLOCK = SystemClock()
