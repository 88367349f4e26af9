"""Units of one resource that a node holds and that its actions use. Scaling saves units that are held but not used."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.runtime.units import Seconds


@dataclass(slots=True)
class ResourceUsage:
    """Units of one resource. `owned` is the planner's share for this node; `used` is what running actions hold.

    Unit-seconds of both are integrated from the first call of `integrate` on.
    """

    exist: int
    prefetches: bool = False
    """Grants beyond the free units wait on the node, in order. Otherwise the leader grants only what is free."""
    owned: int = field(init=False)
    used: int = 0
    owned_unit_s: float = 0.0
    used_unit_s: float = 0.0
    _since: Seconds = 0.0

    def __post_init__(self) -> None:
        self.owned = self.exist

    @property
    def free(self) -> int:
        """Units that nothing uses."""
        return self.exist - self.used

    @property
    def held(self) -> int:
        """Units that are owned, or that are still used."""
        return max(self.owned, self.used)

    def use(self, units: int, now: Seconds) -> None:
        """Count units that actions have taken (+) or released (-)."""
        self.integrate(now)
        self.used += units

    def own(self, units: int, now: Seconds) -> None:
        """Set the number of owned units. Running actions keep theirs, whatever the number."""
        self.integrate(now)
        self.owned = max(0, min(units, self.exist))

    def integrate(self, now: Seconds) -> None:
        """Update the integrals to `now`."""
        elapsed = max(0.0, now - self._since) if self._since else 0.0
        self.owned_unit_s += elapsed * self.held
        self.used_unit_s += elapsed * self.used
        self._since = now
