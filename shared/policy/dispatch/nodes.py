"""Nodes of the mesh by name and class, and what is remembered of lost ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool

MOST_LOST = 1024
"""Most lost nodes that are remembered."""


@dataclass(slots=True)
class Nodes:
    """Present nodes in their newest incarnation."""

    present: dict[str, Node] = field(default_factory=dict)
    """Name -> node."""
    _lost: dict[str, Node] = field(default_factory=dict)
    """Lost nodes with inventory requests unanswered; the newest incarnation of each name."""
    _by_class: dict[str, list[Node]] = field(default_factory=dict)
    """Node class -> its nodes by name; valid until the set of nodes changes."""

    def of(self, pool: Pool, lane: Lane | None = None) -> list[Node]:
        """Nodes that belong to a pool, by name; for a lane bound to one node, that node. Do not change the list."""
        if lane is not None and lane.node:
            bound = self.present.get(lane.node)
            return [bound] if bound is not None and bound.node_class == pool.node_class else []
        nodes = self._by_class.get(pool.node_class)
        if nodes is None:
            nodes = [node for node in self.by_name() if node.node_class == pool.node_class]
            self._by_class[pool.node_class] = nodes
        return nodes

    def by_name(self) -> Iterator[Node]:
        """All nodes, ordered by name."""
        return (node for _, node in sorted(self.present.items()))

    def incarnation(self, name: str, incarnation: str) -> Node | None:
        """Return the node of this name if this is its present incarnation."""
        node = self.present.get(name)
        return node if node is not None and node.incarnation == incarnation else None

    def add(self, node: Node) -> None:
        """Add a node, or a new incarnation of one."""
        lost = self._lost.pop(node.name, None)
        if lost is not None:
            node.inherit_requests(lost)
        self.present[node.name] = node
        self._by_class.clear()

    def remove(self, name: str) -> None:
        """Remove a node; no effect if it is not present."""
        node = self.present.pop(name, None)
        self._by_class.clear()
        if node is not None and node.asked:
            self._lost[name] = node
            while len(self._lost) > MOST_LOST:
                del self._lost[next(iter(self._lost))]
