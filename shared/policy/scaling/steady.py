"""Grow at once, shrink when it has been wanted for a while: the brake against flapping of a pool's target.

A unit given back too early costs its cold start when it is wanted again; one kept too long costs itself. Whoever keeps
it as long as its cold start lasts never pays more than twice what was needed (the ski rental's bound), whatever comes.
So the target is the most that was wanted within that time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Steady:
    """The target of one pool, from what is wanted of it. Memory: one entry for each fall of what was wanted."""

    _wishes: deque[tuple[float, int]] = field(default_factory=deque)
    """(until when it was wanted, units), falling; the last one is wanted still."""

    def target(self, now: float, wanted: int, hold_s: float) -> int:
        """What to hold now.

        Args:
            now: seconds, never less than in a call before.
            wanted: units, from now on.
            hold_s: so long nothing is given back that was wanted.
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
        """When the target will be lower if nothing more is wanted; infinite where it is what is wanted already."""
        return self._wishes[0][0] + hold_s if len(self._wishes) > 1 else math.inf
