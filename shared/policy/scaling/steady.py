"""Damping of a pool's target: grow at once, shrink after a delay, to prevent flapping.

A unit released too early costs its cold start when it is wanted again; a unit kept too long costs itself. Keeping it
for as long as its cold start takes never costs more than twice the optimum, whatever comes (the bound of the ski-rental
problem). So the target is the most that was wanted within that time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Steady:
    """Target of one pool, from the units wanted of it. Memory: one entry for each decrease of what was wanted."""

    _wishes: deque[tuple[float, int]] = field(default_factory=deque)
    """(time until which it was wanted, units), decreasing; the last one is still wanted."""

    def target(self, now: float, wanted: int, hold_s: float) -> int:
        """Return the units to hold now.

        Args:
            now: seconds, never less than in an earlier call.
            wanted: units, from now on.
            hold_s: seconds for which wanted units are not released.
        """
        wishes = self._wishes
        if wishes:
            wishes[-1] = (now, wishes[-1][1])
        while wishes and wishes[-1][1] <= wanted:
            wishes.pop()
        while wishes and wishes[0][0] + hold_s <= now:
            wishes.popleft()
        wishes.append((now, wanted))
        return wishes[0][1]

    def falls_at(self, hold_s: float) -> float:
        """Time at which the target decreases if nothing more is wanted; infinite if it equals what is wanted."""
        return self._wishes[0][0] + hold_s if len(self._wishes) > 1 else math.inf
