"""Exclusive cores: who works on which. An action gets whole cores and nobody shares them while it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from services.cpu_manager.holding import Holding
from shared.units import Seconds


def usable_cores() -> frozenset[int]:
    """The cores this process may run on (its affinity mask)."""
    return frozenset(os.sched_getaffinity(0))


@dataclass(slots=True)
class Cores:
    """The cores of one node, and how many of them it holds."""

    all: frozenset[int]
    holding: Holding = field(init=False)
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.holding = Holding(len(self.all), owned=len(self.all))
        self._free = sorted(self.all, reverse=True)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.holding.used

    def take(self, count: int, now: Seconds) -> frozenset[int]:
        """So many cores, exclusively; the lowest free ones, so that the rest of the machine can sleep.

        Raises:
            ValueError: so many are not free; the grants were wrong.
        """
        if count > len(self._free):
            raise ValueError(f"{count} cores granted, {len(self._free)} of {len(self.all)} free")
        self.holding.use(count, now)
        return frozenset(self._free.pop() for _ in range(count))

    def give_back(self, cores: frozenset[int], now: Seconds) -> None:
        """They are free again."""
        assert cores <= self.all, "cores of another node came back"
        assert cores.isdisjoint(self._free), "cores came back that were free"
        self.holding.use(-len(cores), now)
        self._free = sorted({*self._free, *cores}, reverse=True)
