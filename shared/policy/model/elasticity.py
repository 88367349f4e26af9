"""Elasticity: the speed-up of work with more units, E(m), by table or by a named model (ARL-Tangram §4.1, Eq. 1).

`duration(m) = T / (E(m) * m)`, with T the duration on one unit and 0 < E(m) <= 1. It describes the dependence on one
resource, the key elasticity resource; every other entry of an action's cost is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

LEAST_EFFICIENCY: Final = 1e-6
"""Least efficiency in a table: a unit that contributes almost nothing need not be allowed."""


@dataclass(frozen=True, slots=True)
class Elasticity:
    """E(m) of one action. Hashable, so that values computed from it can be cached."""

    model: Literal["table", "amdahl", "power"] = "table"
    table: tuple[tuple[int, float], ...] = ()
    """`table`: (units, efficiency), ascending. Between two entries the speed-up E(m) * m is interpolated; beyond the
    last it is constant; E(1) is 1 if it is not given."""
    serial: float = 0.0
    """`amdahl`: the part, 0..1, of T that more units do not shorten: E(m) = 1 / (serial * m + 1 - serial)."""
    exponent: float = 1.0
    """`power`: speed-up is m ** exponent, 0..1, so E(m) = m ** (exponent - 1)."""

    def efficiency(self, units: int) -> float:
        """E(m), in (0, 1]; for zero units E(1)."""
        m = max(1, units)
        if self.model == "amdahl":
            return 1.0 / (self.serial * m + 1.0 - self.serial)
        if self.model == "power":
            return float(m ** (self.exponent - 1.0))
        return min(1.0, self._speed_up(m) / m)

    def duration(self, single_s: float, units: int) -> float:
        """Seconds on this many units for work that takes `single_s` on one (Eq. 1)."""
        return single_s / (self.efficiency(units) * max(1, units))

    def single(self, seconds: float, units: int) -> float:
        """The inverse: single-unit seconds of work that took `seconds` on this many units."""
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
"""More units have no effect."""


def by_table(table: Mapping[int, float]) -> Elasticity:
    """Elasticity from a trainer's table: units -> efficiency."""
    return Elasticity("table", tuple(sorted(table.items())))
