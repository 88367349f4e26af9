"""Who has how many units: the one ledger of nodes and what is granted on them.

Law: on every node, for every resource, what is granted never exceeds what the node is to own, except while a share was
lowered below what still runs; then nothing is granted there until enough has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Node:
    """One executing host, this incarnation."""

    name: str
    incarnation: str
    node_class: str
    capacity: Mapping[str, int]
    """Units that exist."""
    kinds: frozenset[str]
    share: dict[str, int] = field(default_factory=dict)
    """Units it shall own, for resources that are scaled; others are owned whole."""
    used: dict[str, int] = field(default_factory=dict)
    ready: bool = False
    """It has answered this leader's inventory; before that nothing is granted on it."""
    seen_s: float = 0.0
    asked_serial: int | None = None
    """Serial of the newest grant when its inventory was asked; grants after it are not in the answer."""
    asked_s: float = 0.0

    def free(self, resource: str) -> int:
        """Units that may be granted now; never negative."""
        limit = self.share.get(resource, self.capacity.get(resource, 0))
        return max(0, limit - self.used.get(resource, 0))

    def fits(self, kind: str, units: Mapping[str, int]) -> bool:
        """Can it take this now, whole?"""
        return self.ready and kind in self.kinds and all(self.free(name) >= count for name, count in units.items())

    def could_ever(self, kind: str, units: Mapping[str, int]) -> bool:
        """Could it take this when it owned everything and were empty?"""
        return kind in self.kinds and all(self.capacity.get(name, 0) >= count for name, count in units.items())

    def take(self, units: Mapping[str, int]) -> None:
        for name, count in units.items():
            self.used[name] = self.used.get(name, 0) + count

    def give_back(self, units: Mapping[str, int]) -> None:
        for name, count in units.items():
            self.used[name] -= count
            assert self.used[name] >= 0, f"{self.name} got back more {name} than it gave"


def place(nodes: Iterable[Node], kind: str, units: Mapping[str, int], resource: str) -> Node | None:
    """The node with the most free units of the pool's resource among those that fit; by name where equal."""
    best: Node | None = None
    for node in nodes:
        if node.fits(kind, units):
            rank = (-node.free(resource), node.name)
            if best is None or rank < (-best.free(resource), best.name):
                best = node
    return best


def spread(wanted: int, nodes: Iterable[Node], resource: str) -> dict[str, int]:
    """Units each node shall own so that they add up to `wanted` (or all there is), as evenly as capacities allow.

    Nodes with running work keep at least that. Deterministic: ties go by name. O(units + nodes log nodes).
    """
    ordered = sorted(nodes, key=lambda node: (-node.used.get(resource, 0), node.name))
    shares = {node.name: min(node.used.get(resource, 0), node.capacity.get(resource, 0)) for node in ordered}
    left = wanted - sum(shares.values())
    while left > 0:
        open_nodes = [node for node in ordered if shares[node.name] < node.capacity.get(resource, 0)]
        if not open_nodes:
            break
        least = min(open_nodes, key=lambda node: (shares[node.name], node.name))
        shares[least.name] += 1
        left -= 1
    return shares
