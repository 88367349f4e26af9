"""Lowest levels of a rate since each of its takes: how much of a reservation may be given back.

Law: after a refund the level is what it would be if the attempt had taken only what it used. A level is the amount that
is missing from the full bucket, and is never below 0. A bucket that was full meanwhile has lost the refill that the
reservation had cost it. So the refund is at most the lowest level since the take. More would let other attempts take
the lost refill as well, and exceed the rate.
Oracle: tests/shared/policy/resources/test_level_history.py computes the levels again from all takes and uses.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

MOST_LOWS: Final = 256
"""Lows that are kept of one rate. Beyond it, each second one is merged with its neighbour: refunds become smaller."""


@dataclass(slots=True)
class LevelHistory:
    """Lows of one rate: each is the lowest level from its take, or the one after the low before it, until now.

    `note` is O(1) amortised; the others are O(`MOST_LOWS`) at most.
    """

    first: int
    """Serial of the first take that is known."""
    _serials: list[int] = field(default_factory=list)
    """Serials of the takes before which these levels were, ascending."""
    _lows: list[float] = field(default_factory=list)
    """Those levels, ascending."""

    def note(self, serial: int, level: float) -> None:
        """Note the level immediately before a take, or another increase, of this serial."""
        while self._lows and self._lows[-1] >= level:
            del self._lows[-1], self._serials[-1]
        self._lows.append(level)
        self._serials.append(serial)
        if len(self._lows) > MOST_LOWS:  # of each pair the lower level and the later serial; the last one is alone
            self._lows = [*self._lows[:-1:2], self._lows[-1]]
            self._serials = [*self._serials[1:-1:2], self._serials[-1]]

    def refund(self, serial: int, surplus: float, level: float) -> float:
        """Return how much of a surplus may be given back, and lower the path of the level by it.

        Args:
            serial: of the take; -1: one before all that are known.
            surplus: amount that the attempt took and did not use, > 0.
            level: present level.
        """
        at = bisect_right(self._serials, serial)
        back = min([surplus, level, *self._lows[at : at + 1]])
        for later in range(at, len(self._lows)):
            self._lows[later] -= back
        while 0 < at < len(self._lows) and self._lows[at - 1] >= self._lows[at]:
            at -= 1
            del self._lows[at], self._serials[at]
        return back

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert self._serials == sorted(set(self._serials)), "in the order of the takes"
        assert self._lows == sorted(self._lows), "each low is the lowest from then on"
        assert all(low >= -1e-6 for low in self._lows), "no level is below 0"
        assert len(self._lows) == len(self._serials) <= MOST_LOWS, "bounded"
