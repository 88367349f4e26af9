"""How much of one resource a node holds, and works on: what scaling saves is held and not worked on."""

from __future__ import annotations

from dataclasses import dataclass

from shared.runtime.units import Seconds


@dataclass(slots=True)
class ResourceUsage:
    """Units of one resource. `owned` is what the planner wants held; `used` is what actions work on.

    Unit-seconds of both are integrated, from the first settling on.
    """

    exist: int
    owned: int
    used: int = 0
    owned_unit_s: float = 0.0
    used_unit_s: float = 0.0
    _since: Seconds = 0.0

    @property
    def held(self) -> int:
        """Units that are owned, or worked on still."""
        return max(self.owned, self.used)

    def use(self, units: int, now: Seconds) -> None:
        """Actions have taken so many units (+), or given them back (-)."""
        self.settle(now)
        self.used += units

    def own(self, units: int, now: Seconds) -> None:
        """Own so many from now on. Running actions keep theirs, whatever the number."""
        self.settle(now)
        self.owned = max(0, min(units, self.exist))

    def settle(self, now: Seconds) -> None:
        """Bring the integrals up to now."""
        elapsed = max(0.0, now - self._since) if self._since else 0.0
        self.owned_unit_s += elapsed * self.held
        self.used_unit_s += elapsed * self.used
        self._since = now
