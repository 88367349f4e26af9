"""Nodes of the mesh by name and class, and what is remembered of lost ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from shared.policy.dispatch.restores import Restores
from shared.policy.dispatch.unusable_services import UnusableServices
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool
from shared.policy.resources.rankings import Rankings
from shared.policy.resources.resource import PLAIN

MOST_LOST = 1024
"""Most lost nodes that are remembered."""
MOST_SORTS: Final = 4096
"""Most sorts of work for which it is remembered whether a node could run it."""

_by_name = attrgetter("name")


@dataclass(slots=True)
class Nodes:
    """Present nodes in their newest incarnation. They report their changes to the rankings."""

    present: dict[str, Node] = field(default_factory=dict)
    """Name -> node."""
    rankings: Rankings = field(init=False)
    possible: dict[Hashable, bool] = field(default_factory=dict)
    """Sort of work -> some node could run it; valid until the nodes, their kinds or their model services change."""
    _lost: dict[str, Node] = field(default_factory=dict)
    """Lost nodes with inventory requests unanswered; the newest incarnation of each name."""
    _by_class: dict[str, list[Node]] = field(default_factory=dict)
    """Node class -> its nodes by name."""
    _kinds: dict[str, Counter[frozenset[str]]] = field(default_factory=dict)
    """Node class -> sets of kinds that its nodes offer, with the number of nodes."""
    _plain: dict[tuple[str, str], bool] = field(default_factory=dict)
    """(Resource, node class) -> it is a plain count on all nodes; valid as `possible`."""
    restores: Restores = field(default_factory=Restores)
    """Restores of model services that present nodes report."""
    unusable: UnusableServices = field(default_factory=UnusableServices)
    """Model services whose entries are wrong on present nodes."""
    quarantined: UnusableServices = field(default_factory=UnusableServices)
    """Model services with quarantined or late engines on present nodes. New actions wait for them."""
    unserved: dict[Hashable, str] = field(default_factory=dict)
    """Sort of work -> reason why no node can serve it, empty: none is known; valid as `possible`."""

    def __post_init__(self) -> None:
        self.rankings = Rankings(self.present)

    def of(self, pool: Pool, lane: Lane | None = None) -> list[Node]:
        """Nodes that belong to a pool, by name; for a lane bound to one node, that node. Do not change the list."""
        if lane is not None and lane.node:
            bound = self.present.get(lane.node)
            return [bound] if bound is not None and bound.node_class == pool.node_class else []
        return self._by_class.get(pool.node_class, [])

    def by_name(self) -> Iterator[Node]:
        """All nodes, ordered by name."""
        return (node for _, node in sorted(self.present.items()))

    def kinds_of(self, node_class: str) -> Iterable[frozenset[str]]:
        """Sets of kinds that the nodes of a class offer."""
        return self._kinds.get(node_class, ())

    def are_plain(self, pool: Pool) -> bool:
        """Return whether the pool's resource is a plain count on all its nodes, so that rankings place its work."""
        known = self._plain.get((pool.resource, pool.node_class))
        if known is None:
            known = all(node.specs.get(pool.resource, PLAIN).is_plain for node in self.of(pool))
            self._plain[pool.resource, pool.node_class] = known
        return known

    def are_structured(self, pool: Pool) -> bool:
        """Return whether the pool's resource has a structure on its nodes."""
        nodes = self._by_class.get(pool.node_class)
        return nodes is not None and nodes[0].specs.get(pool.resource, PLAIN).is_structured

    def remember_possible(self, sort: Hashable, possible: bool) -> None:
        """Remember whether some node could run a sort of work."""
        if len(self.possible) >= MOST_SORTS:
            self.possible.clear()
        self.possible[sort] = possible

    def remember_unserved(self, sort: Hashable, reason: str) -> None:
        """Remember why no node can serve a sort of work."""
        if len(self.unserved) >= MOST_SORTS:
            self.unserved.clear()
        self.unserved[sort] = reason

    def incarnation(self, name: str, incarnation: str) -> Node | None:
        """Return the node of this name if this is its present incarnation."""
        node = self.present.get(name)
        return node if node is not None and node.incarnation == incarnation else None

    def add(self, node: Node) -> None:
        """Add a node, or a new incarnation of one. O(log nodes), and a move of 8 bytes for each node."""
        lost = self._lost.pop(node.name, None)
        if lost is not None:
            node.inherit_requests(lost)
        if node.name in self.present:
            self._take_out(self.present[node.name])
            self.unusable.forget(node.name)
            self.quarantined.forget(node.name)
        self.present[node.name] = node
        insort(self._by_class.setdefault(node.node_class, []), node, key=_by_name)
        self._kinds.setdefault(node.node_class, Counter())[node.kinds] += 1
        node.changes = self.rankings
        self._changed(node)

    def offer(self, node: Node, kinds: frozenset[str]) -> None:
        """Add kinds that a present node offers from now on."""
        counts = self._kinds[node.node_class]
        _uncount(counts, node.kinds)
        node.kinds |= kinds
        counts[node.kinds] += 1
        self._changed(node)

    def served(self, node: Node) -> None:
        """Follow a report of a node's model services: which work it could run may have changed."""
        self._changed(node)

    def remove(self, name: str) -> None:
        """Remove a node; no effect if it is not present."""
        node = self.present.pop(name, None)
        if node is None:
            return
        self.restores.forget(name)
        self.unusable.forget(name)
        self.quarantined.forget(name)
        self._take_out(node)
        self._changed(node)
        if node.asked:
            self._lost[name] = node
            while len(self._lost) > MOST_LOST:
                del self._lost[next(iter(self._lost))]

    def _take_out(self, node: Node) -> None:
        nodes, counts = self._by_class[node.node_class], self._kinds[node.node_class]
        del nodes[bisect_left(nodes, node.name, key=_by_name)]
        _uncount(counts, node.kinds)
        if not nodes:
            del self._by_class[node.node_class], self._kinds[node.node_class]

    def _changed(self, node: Node) -> None:
        self.possible.clear()
        self.unserved.clear()
        self._plain.clear()
        self.rankings.touch(node.name)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self.rankings.check()
        nodes = sorted(self.present.values(), key=_by_name)
        classes = {node.node_class for node in nodes}
        assert self._by_class == {name: [one for one in nodes if one.node_class == name] for name in classes}, (
            "by class"
        )
        kinds = {name: Counter(one.kinds for one in nodes if one.node_class == name) for name in classes}
        assert self._kinds == kinds, "kinds by class"


def _uncount(counts: Counter[frozenset[str]], kinds: frozenset[str]) -> None:
    counts[kinds] -= 1
    if not counts[kinds]:
        del counts[kinds]
