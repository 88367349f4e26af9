"""State of one grant that has begun on this node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    units: Mapping[str, int] = field(init=False)
    """Units that it takes. A grant may also name resources with zero units, which the node may not have."""
    reported: bool = False
    """True if `Started` or `Parked` has been reported."""
    state: Literal["running", "parking", "parked", "resuming"] = "running"
    """`parking`: its executor freezes it. `parked`: frozen, holds no units. `resuming`: waits for its units."""
    order: tuple[int, int] = (0, 0)
    """(epoch, serial) of the newest message that parked or resumed it."""
    freezing: asyncio.Task[bool] | None = None
    """Its executor's `park`, in the state `parking`."""
    paused_at: Seconds = 0.0
    """Start of the state `parked`."""
    paused_s: Seconds = 0.0
    """Time without units, in all earlier states `parked` and `resuming`."""

    def __post_init__(self) -> None:
        self.units = {name: units for name, units in self.grant.units.items() if units}

    @property
    def holds_units(self) -> bool:
        """False while it is parked, or waits for its units."""
        return self.state in ("running", "parking")

    def executed_s(self, now: Seconds) -> Seconds:
        """Return its execution time so far. Time without units does not count."""
        return (now if self.holds_units else self.paused_at) - self.since - self.paused_s

    def without_units_s(self, now: Seconds) -> Seconds:
        """Return its time without units so far."""
        return self.paused_s + (0.0 if self.holds_units else now - self.paused_at)
