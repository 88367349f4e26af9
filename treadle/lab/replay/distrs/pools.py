"""Pools that grow and shrink: units are paid from the decision on, and can be used a cold start later.

Shrinking ends nothing: units that still start go first, then idle ones, and what runs keeps its units to its end.
Growing first takes back those that were to leave after what they run: they are warm.
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
    """Units that were asked for at one moment."""

    usable_s: float
    units: int


class Pools:
    """What is held of each pool, and what it costs.

    Args:
        free: units that wait for work, by pool; changed in place. Below zero while more runs than is held.
        cold_starts_s: by pool, from asking for a unit to being able to use it.
    """

    def __init__(self, free: Counts, cold_starts_s: Sequence[float]) -> None:
        self._free, self._cold_starts_s = free, cold_starts_s
        self.targets: Counts = np.zeros(len(free), np.int64)
        """By pool: units held, those that still start among them."""
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
        """Pay for what was held since the last account. Call it before targets change."""
        self.unit_s += self.targets * (now - self._accounted_s)
        self._accounted_s = now

    def set(self, now: float, pool: int, units: int) -> float:
        """Hold so many units; returns when the last of them can be used, infinite where nothing new starts."""
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
        """Let those be used whose cold start is over."""
        starting = self._starting[pool]
        while starting and starting[0].usable_s <= now:
            self._free[pool] += starting.popleft().units

    def _stopped(self, pool: int, units: int) -> int:
        """Stop units that still start, the newest first; returns how many of `units` are not found among them."""
        starting = self._starting[pool]
        while units and starting:
            fewer = min(units, starting[-1].units)
            starting[-1].units -= fewer
            units -= fewer
            if not starting[-1].units:
                starting.pop()
        return units
