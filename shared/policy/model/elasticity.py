"""How work speeds up with units: E(m), by table or by a named model (ARL-Tangram §4.1, Eq. 1).

`duration(m) = T / (E(m) * m)`, with T the duration on one unit and 0 < E(m) <= 1. What depends on one resource alone,
the key elasticity resource, is described; every other entry of an action's cost is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

LEAST_EFFICIENCY: Final = 1e-6
"""A table names no less: a unit that does next to nothing is one that need not be allowed."""


@dataclass(frozen=True, slots=True)
class Elasticity:
    """One action's E(m). Hashable, so that what is computed from it can be kept."""

    model: Literal["table", "amdahl", "power"] = "table"
    table: tuple[tuple[int, float], ...] = ()
    """`table`: (units, efficiency), ascending. Between two entries the speed-up E(m) * m is interpolated; beyond the
    last it stays as it is there; E(1) is 1 where it is not given."""
    serial: float = 0.0
    """`amdahl`: the part, 0..1, of T that more units do not shorten: E(m) = 1 / (serial * m + 1 - serial)."""
    exponent: float = 1.0
    """`power`: speed-up is m ** exponent, 0..1, so E(m) = m ** (exponent - 1)."""

    def efficiency(self, units: int) -> float:
        """E(m), in (0, 1]; of no units it is that of one."""
        m = max(1, units)
        if self.model == "amdahl":
            return 1.0 / (self.serial * m + 1.0 - self.serial)
        if self.model == "power":
            return float(m ** (self.exponent - 1.0))
        return min(1.0, self._speed_up(m) / m)

    def duration(self, single_s: float, units: int) -> float:
        """Seconds on so many units of what takes `single_s` on one (Eq. 1)."""
        return single_s / (self.efficiency(units) * max(1, units))

    def single(self, seconds: float, units: int) -> float:
        """The other way round: what took so long on so many units would have taken this on one."""
        return seconds * self.efficiency(units) * max(1, units)

    def _speed_up(self, m: int) -> float:
        below, at_below = 1, 1.0
        for units, efficiency in self.table:
            speed_up = units * efficiency
            if units == m:
                return speed_up
            if units > m:
                return at_below + (speed_up - at_below) * (m - below) / (units - below)
            below, at_below = units, speed_up
        return at_below


RIGID = Elasticity("table", ((1, 1.0),))
"""More units change nothing."""


def by_table(table: Mapping[int, float]) -> Elasticity:
    """E(m) as a trainer writes it: units -> efficiency."""
    return Elasticity("table", tuple(sorted(table.items())))
