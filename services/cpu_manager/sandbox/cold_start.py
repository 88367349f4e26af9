"""Time that this host needs to start a worker, measured whenever a job has to wait for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.runtime.units import Seconds

_FORGETS: Final = 0.25
"""Share of the distance to a shorter measurement: one slow start is forgotten after about ten measurements."""


@dataclass(slots=True)
class ColdStart:
    """An estimate that rises at once to a longer measurement and falls slowly: a warm-up must not begin too late."""

    seconds: Seconds | None = None
    """None before the first measurement."""

    def measured(self, seconds: Seconds) -> None:
        """Add a measurement: seconds from the request for a worker to the start of its program."""
        known = seconds if self.seconds is None else self.seconds
        self.seconds = max(seconds, known + _FORGETS * (seconds - known))
