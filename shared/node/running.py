"""State of one grant that has begun on this node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from shared.messages.grants import Granted
from shared.policy.model.results import AttemptResult
from shared.runtime.units import Seconds


@dataclass(slots=True)
class RunningAttempt:
    """One attempt from its start to its end."""

    grant: Granted
    task: asyncio.Task[AttemptResult]
    read_at: Seconds
    """Time when the grant was read. It may have waited for units since then."""
    since: Seconds
    reported: bool = False
    """True if `Started` or `Parked` has been reported."""
    state: Literal["running", "parking", "parked", "resuming"] = "running"
    """`parking`: its executor freezes it. `parked`: frozen, holds no units. `resuming`: waits for its units."""
    order: tuple[int, int] = (0, 0)
    """(epoch, serial) of the newest message that parked or resumed it."""
    parking: asyncio.Task[bool] | None = None
    paused_at: Seconds = 0.0
    """Start of the state `parked`."""
    paused_s: Seconds = 0.0
    """Time without units, in all earlier states `parked` and `resuming`."""

    @property
    def holds_units(self) -> bool:
        """False while it is parked, or waits for its units."""
        return self.state in ("running", "parking")

    def executed_s(self, now: Seconds) -> Seconds:
        """Return its execution time so far. Time without units does not count."""
        return (now if self.holds_units else self.paused_at) - self.since - self.paused_s
