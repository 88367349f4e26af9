"""Exclusive cores of a node. An action gets whole cores and shares none of them while it runs.

The policy selects the cores (`shared.policy.resources.cores`): of one NUMA node if possible, siblings together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from shared.policy.resources.cores import CoreSets, Topology


def usable_cores() -> frozenset[int]:
    """The cores this process may run on (its affinity mask)."""
    return frozenset(os.sched_getaffinity(0))


@dataclass(slots=True)
class Cores:
    """The cores of one node. The agent counts them; here is which ones an attempt has."""

    topology: Topology
    all: frozenset[int] = field(init=False)
    _sets: CoreSets = field(init=False)

    def __post_init__(self) -> None:
        self.all = frozenset(core for node in self.topology.nodes for group in node for core in group)
        self._sets = CoreSets(self.topology)

    def take(self, count: int) -> frozenset[int]:
        """Assign `count` cores exclusively.

        Raises:
            ValueError: fewer are free, so the grants were wrong.
        """
        return self._sets.take(count) if count else frozenset()

    def give_back(self, cores: frozenset[int]) -> None:
        """Release these cores.

        Raises:
            ValueError: they were not assigned.
        """
        if cores:
            self._sets.give_back(cores)
