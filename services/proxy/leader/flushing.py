"""The flush under way: a refill of a quota does not wake the leader while one is late.

What is granted until then reaches its caller after the flush, together with what is granted then. So what is refilled
while a flush is late does not count, and a rate is exceeded by what is refilled in `LATE_S`. That much counts in each
flush: a store that is always slow gives less than the rate, and not nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from shared.runtime.units import Seconds

LATE_S: Final[Seconds] = 0.25
"""Duration from which a flush is late."""


class Flushing:
    """Context of each flush, one after the other."""

    def __init__(self) -> None:
        self._late_at_s = math.inf
        self.ended_late: Callable[[Seconds], None] = lambda _: None
        """Called with the time for which a flush was late."""

    def __enter__(self) -> None:
        self._late_at_s = time.monotonic() + LATE_S

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        late_s = time.monotonic() - self._late_at_s
        self._late_at_s = math.inf
        if late_s >= 0 and error is None:
            self.ended_late(late_s)

    @property
    def is_late(self) -> bool:
        """A flush has been under way for longer than it should."""
        return time.monotonic() >= self._late_at_s
