"""Time as an argument: services take a `Clock`, and tests pass one that they advance by hand."""

from __future__ import annotations

import time
from typing import Protocol

from shared.runtime.units import Seconds


class Clock(Protocol):
    """Monotonic seconds for durations and deadlines; Unix seconds for people and tables."""

    def monotonic(self) -> Seconds: ...

    def unix(self) -> Seconds: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> Seconds:
        return time.monotonic()

    def unix(self) -> Seconds:
        return time.time()


SYSTEM_CLOCK = SystemClock()
