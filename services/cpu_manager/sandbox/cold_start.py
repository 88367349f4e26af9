"""How long a worker takes to come into being on this host, as it is measured whenever a job has to wait for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.runtime.units import Seconds

_FORGETS: Final = 0.25
"""Of the distance to a shorter measurement: a host that hiccuped once is forgiven after about ten."""


@dataclass(slots=True)
class ColdStart:
    """A maximum that is up at once and comes down with what is measured later: who warms up must not come late."""

    seconds: Seconds | None = None
    """None until a worker was made."""

    def measured(self, seconds: Seconds) -> None:
        """One worker was asked for, and its program began so long after."""
        known = seconds if self.seconds is None else self.seconds
        self.seconds = max(seconds, known + _FORGETS * (seconds - known))
