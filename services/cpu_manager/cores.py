"""Exclusive cores of a node. An action gets whole cores and shares none of them while it runs.

The policy selects the cores (`shared.policy.resources.cores`): of one NUMA node if possible, siblings together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from services.cpu_manager.resource_usage import ResourceUsage
from shared.policy.resources.cores import CoreSets, Topology
from shared.runtime.units import Seconds


def usable_cores() -> frozenset[int]:
    """The cores this process may run on (its affinity mask)."""
    return frozenset(os.sched_getaffinity(0))


@dataclass(slots=True)
class Cores:
    """The cores of one node, and how many of them it holds."""

    topology: Topology
    all: frozenset[int] = field(init=False)
    usage: ResourceUsage = field(init=False)
    _sets: CoreSets = field(init=False)

    def __post_init__(self) -> None:
        self.all = frozenset(core for node in self.topology.nodes for group in node for core in group)
        self.usage = ResourceUsage(len(self.all), owned=len(self.all))
        self._sets = CoreSets(self.topology)

    @property
    def free(self) -> int:
        return len(self.all) - self.usage.used

    @property
    def used(self) -> int:
        return self.usage.used

    def take(self, count: int, now: Seconds) -> frozenset[int]:
        """Assign `count` cores exclusively.

        Raises:
            ValueError: fewer are free, so the grants were wrong.
        """
        if count == 0:
            return frozenset()
        taken = self._sets.take(count)
        self.usage.use(count, now)
        return taken

    def give_back(self, cores: frozenset[int], now: Seconds) -> None:
        """Release these cores.

        Raises:
            ValueError: they were not assigned.
        """
        if cores:
            self._sets.give_back(cores)
            self.usage.use(-len(cores), now)
