"""The flush under way: a refill of a quota does not wake the leader while one is late.

What is granted until then reaches its caller after the flush, together with what is granted then. So after a stall
of the store a rate is exceeded: by what was free before, and by what is refilled in `LATE_S`.
"""

from __future__ import annotations

import math
import time
from typing import Final

from shared.runtime.units import Seconds

LATE_S: Final[Seconds] = 0.25
"""Duration from which a flush is late."""


class Flushing:
    """Context of each flush, one after the other."""

    def __init__(self) -> None:
        self._late_at_s = math.inf

    def __enter__(self) -> None:
        self._late_at_s = time.monotonic() + LATE_S

    def __exit__(self, *_: object) -> None:
        self._late_at_s = math.inf

    @property
    def is_late(self) -> bool:
        """A flush has been under way for longer than it should."""
        return time.monotonic() >= self._late_at_s
