"""Pools that grow and shrink: units cost from the decision on, and are usable a cold start later.

A smaller target ends no work: starting units are released first, then idle ones; running work keeps its units to its
end. A larger target first keeps the units that were to be released after their work: they are warm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.policy.scaling.list_scheduling import Counts, Floats


@dataclass
class _Starting:
    """Units requested at one time."""

    usable_s: float
    units: int


class Pools:
    """Held units of each pool, and their cost.

    Args:
        free: idle units by pool; changed in place. Below zero while more units run than are held.
        cold_starts_s: by pool, seconds from the request of a unit until it is usable.
    """

    def __init__(self, free: Counts, cold_starts_s: Sequence[float]) -> None:
        self._free, self._cold_starts_s = free, cold_starts_s
        self.targets: Counts = np.zeros(len(free), np.int64)
        """By pool: held units, including starting ones."""
        self.unit_s: Floats = np.zeros(len(free))
        """By pool: unit-seconds held up to the last account."""
        self._starting: list[deque[_Starting]] = [deque() for _ in free]
        self._accounted_s = 0.0

    @property
    def busy(self) -> Counts:
        """By pool: units in use."""
        starting = [sum(one.units for one in pool) for pool in self._starting]
        return self.targets - self._free - np.array(starting, np.int64)

    def account(self, now: float) -> None:
        """Add the cost since the last account. Call it before targets change."""
        self.unit_s += self.targets * (now - self._accounted_s)
        self._accounted_s = now

    def set(self, now: float, pool: int, units: int) -> float:
        """Set the target; return the time at which the last new unit is usable, infinite if none starts."""
        change = units - int(self.targets[pool])
        self.targets[pool] = units
        if change <= 0:
            self._free[pool] -= self._stopped(pool, -change)
            return math.inf
        cold_start_s = self._cold_starts_s[pool]
        warm = change if cold_start_s == 0 else min(change, max(0, -int(self._free[pool])))
        self._free[pool] += warm
        if change == warm:
            return math.inf
        self._starting[pool].append(_Starting(now + cold_start_s, change - warm))
        return now + cold_start_s

    def warmed(self, now: float, pool: int) -> None:
        """Make units usable whose cold start is over."""
        starting = self._starting[pool]
        while starting and starting[0].usable_s <= now:
            self._free[pool] += starting.popleft().units

    def _stopped(self, pool: int, units: int) -> int:
        """Stop starting units, the newest first; return how many of `units` remain to release."""
        starting = self._starting[pool]
        while units and starting:
            fewer = min(units, starting[-1].units)
            starting[-1].units -= fewer
            units -= fewer
            if not starting[-1].units:
                starting.pop()
        return units
