"""Exclusive cores: who works on which. An action gets whole cores and nobody shares them while it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from shared.units import Seconds


def usable_cores() -> frozenset[int]:
    """The cores this process may run on (its affinity mask)."""
    return frozenset(os.sched_getaffinity(0))


@dataclass(slots=True)
class Cores:
    """The cores of one node. `owned` is what the planner wants held; `used` is what actions work on.

    Core-seconds of both are integrated, because what was owned and not used is what scaling saves.
    """

    all: frozenset[int]
    owned: int
    _free: list[int] = field(init=False)
    owned_unit_s: float = 0.0
    used_unit_s: float = 0.0
    _since: Seconds = 0.0

    def __post_init__(self) -> None:
        self._free = sorted(self.all, reverse=True)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self.all) - len(self._free)

    def take(self, count: int, now: Seconds) -> frozenset[int]:
        """So many cores, exclusively; the lowest free ones, so that the rest of the machine can sleep.

        Raises:
            ValueError: so many are not free; the grants were wrong.
        """
        if count > len(self._free):
            raise ValueError(f"{count} cores granted, {len(self._free)} of {len(self.all)} free")
        self.settle(now)
        return frozenset(self._free.pop() for _ in range(count))

    def give_back(self, cores: frozenset[int], now: Seconds) -> None:
        """They are free again."""
        self.settle(now)
        assert cores <= self.all, "cores of another node came back"
        assert cores.isdisjoint(self._free), "cores came back that were free"
        self._free = sorted({*self._free, *cores}, reverse=True)

    def own(self, count: int, now: Seconds) -> None:
        """Own so many from now on. Running actions keep theirs, whatever the number."""
        self.settle(now)
        self.owned = max(0, min(count, len(self.all)))

    def settle(self, now: Seconds) -> None:
        """Bring the integrals up to now."""
        elapsed = max(0.0, now - self._since) if self._since else 0.0
        self.owned_unit_s += elapsed * max(self.owned, self.used)
        self.used_unit_s += elapsed * self.used
        self._since = now
