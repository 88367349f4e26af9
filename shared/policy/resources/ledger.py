"""Ledger of units: the one record of nodes and of what is granted on them.

Law: everything that a node holds, wanted or not, stays taken until the node reports its end or the incarnation is over.
So on every node, for every resource, the taken units never exceed the capacity. Grants never exceed the share, except
while a share was lowered below what still runs. Then nothing is granted there until enough has ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from shared.policy.resources.orphans import Orphan
from shared.policy.resources.residency import Residency
from shared.policy.resources.resource import NO_USE, PLAIN, Rank, Resource, Specs, Use


class ChangeLog(Protocol):
    """Receiver of the names of nodes that have changed in a way that a decision may depend on."""

    def touch(self, name: str) -> None:
        """Record that a node has changed."""
        ...


class NoChangeLog:
    """Log of a node that nothing follows."""

    def touch(self, name: str) -> None:
        """Ignore a change."""


def environment(trajectory: str) -> str:
    """Holder of the units of a trajectory's environment. No conflict with actions, whose ids have no space."""
    return f"environment {trajectory}"


@dataclass(slots=True)
class Node:
    """One executing host in its present incarnation."""

    name: str
    incarnation: str
    node_class: str
    capacity: Mapping[str, int]
    """Units that exist."""
    kinds: frozenset[str]
    specs: Specs = field(default_factory=dict, repr=False)
    """Resource -> what it declares; others are plain counts."""
    resources: dict[str, Resource] = field(init=False)
    """By name. Only `take`, `give_back`, `rearrange` and `own` change them."""
    orphans: dict[str, Orphan] = field(default_factory=dict)
    """Action -> its orphaned attempt here. A node never holds two attempts of one action."""
    prefetches: frozenset[str] = frozenset()
    """Resources with a node queue: the node starts work granted beyond its free units by itself, in order, when units
    are free."""
    ready: bool = False
    """The node has answered this leader's inventory request; before that nothing is granted on it."""
    seen_s: float = 0.0
    asked: deque[int] = field(default_factory=deque)
    """Serial of the newest grant at each unanswered inventory request, oldest first.

    Grants after it may be missing in the answer. Answers come in the order of the requests. If one is lost, the next
    answer is matched to an older request: it then proves less than it could, never more. At most one request is sent in
    `overdue_s`.
    """
    stale_requests: int = 0
    """Number of them sent before the node was added (again): their answers do not cover the time between."""
    asked_s: float = float("-inf")
    images: Residency = field(default_factory=Residency)
    """Images of its container engine."""
    changes: ChangeLog = field(default_factory=NoChangeLog, repr=False, compare=False)
    """Log of the rankings that follow it."""

    def __post_init__(self) -> None:
        self.resources = {}
        for name, units in self.capacity.items():
            spec = self.specs.get(name, PLAIN)
            self.resources[name] = spec.make(units, spec)

    @property
    def used(self) -> dict[str, int]:
        """Units taken of each resource of which any were ever taken or exist."""
        return {name: resource.used for name, resource in self.resources.items()}

    def limit(self, resource: str) -> int:
        """Units it owns."""
        known = self.resources.get(resource)
        return 0 if known is None else known.capacity if known.share is None else known.share

    def share(self, resource: str) -> int | None:
        """Units it was assigned to own; None: none were assigned, and it owns all."""
        known = self.resources.get(resource)
        return None if known is None else known.share

    def free(self, resource: str) -> int:
        """Units that may be granted now; never negative."""
        known = self.resources.get(resource)
        return 0 if known is None else known.free

    def taken(self, resource: str) -> int:
        """Units that are taken."""
        known = self.resources.get(resource)
        return 0 if known is None else known.used

    def numbers(self, resource: str, holder: str) -> tuple[int, ...]:
        """Numbers of the units that a holder has of a resource; empty if units have none."""
        known = self.resources.get(resource)
        return () if known is None else known.numbers(holder)

    def has_free(self, units: Mapping[str, int], use: Use = NO_USE) -> bool:
        """Return whether all these units can be taken now."""
        for name, count in units.items():
            known = self.resources.get(name)
            if not (known.fits(count, use) if known is not None else count <= 0):
                return False
        return True

    def rank(self, resource: str, units: Mapping[str, int], use: Use = NO_USE) -> Rank | None:
        """Return the position of this node for a holder of these units by one of its resources; None: it does not fit
        now.
        """
        known = self.resources.get(resource)
        if known is None or (len(units) > 1 and not self.has_free(units, use)):
            return None
        return known.rank(units.get(resource, 0), use)

    def fits(self, action: str, kind: str, units: Mapping[str, int]) -> bool:
        """Return whether it can run this now."""
        return self.accepts(action, kind) and self.has_free(units)

    def accepts(self, action: str, kind: str) -> bool:
        """Return whether it can run this now if the units are free."""
        return self.ready and kind in self.kinds and action not in self.orphans

    def could_ever(self, kind: str, units: Mapping[str, int], use: Use = NO_USE) -> bool:
        """Return whether it could run this if it were empty and owned all its units."""
        if kind not in self.kinds:
            return False
        for name, count in units.items():
            known = self.resources.get(name)
            if not (known.could_ever(count, use) if known is not None else count <= 0):
                return False
        return True

    def score(self, resource: str, units: int) -> float:
        """Score of a resource's placement strategy for so many units; minus infinity if it does not have any."""
        known = self.resources.get(resource)
        return -math.inf if known is None else known.spec.score(known, units)

    # ---- changes of units: all of them are here ----------------------------------------------------------------

    def take(self, units: Mapping[str, int], holder: str, use: Use = NO_USE) -> None:
        """Take units for a holder: an action, or a trajectory's environment (`environment`)."""
        for name, count in units.items():
            known = self.resources.get(name)
            if known is None:  # reported by a node that does not have it
                spec = self.specs.get(name, PLAIN)
                known = self.resources[name] = spec.make(0, spec)
            known.take(count, holder, use)
        self.changes.touch(self.name)

    def give_back(self, units: Mapping[str, int], holder: str) -> None:
        """Give back what a holder has taken."""
        for name, count in units.items():
            assert name in self.resources, f"{self.name}: more {name} given back than taken"
            known = self.resources[name]
            assert count <= known.used, f"{self.name}: more {name} given back than taken"
            known.give_back(count, holder)
        self.changes.touch(self.name)

    def rearrange(
        self,
        resource: str,
        before: Mapping[str, int],
        after: Mapping[str, int],
        uses: Mapping[str, Use] = MappingProxyType({}),
    ) -> None:
        """Change the units of several holders that were granted in this round, in the order of `before`: all give back
        theirs, then those of `after` take, in its order.
        """
        known = self.resources[resource]
        for holder, units in reversed(tuple(before.items())):
            known.undo(units, holder)
        for holder, units in after.items():
            known.take(units, holder, uses.get(holder, NO_USE))
        self.changes.touch(self.name)

    def own(self, resource: str, units: int) -> None:
        """Set the units that it owns of a scaled resource."""
        self.resources[resource].share = units
        self.changes.touch(self.name)

    def become_ready(self) -> None:
        """Let grants be placed on it from now on."""
        self.ready = True
        self.changes.touch(self.name)

    # ---- orphans -----------------------------------------------------------------------------------------------

    def add_orphan(self, action: str, orphan: Orphan) -> None:
        """Add an orphan. Its units are taken already."""
        self.orphans[action] = orphan
        self.changes.touch(self.name)

    def start_orphans(self) -> None:
        """Take the free units that orphans await: the node may have started them."""
        for action, orphan in self.orphans.items():
            if orphan.awaits and self.has_free(orphan.awaits):
                self.take(orphan.awaits, action)
                self.orphans[action] = orphan.started()

    def orphan_ended(self, action: str, stage: int, attempt: int) -> bool:
        """Free the units of an orphan that has ended. False: this attempt is no orphan."""
        orphan = self.orphans.get(action)
        if orphan is None or (orphan.stage, orphan.attempt) != (stage, attempt):
            return False
        del self.orphans[action]
        self.give_back(orphan.units, action)
        return True

    def orphans_until(self, serial: int) -> Iterator[tuple[str, Orphan]]:
        """Orphans that an inventory requested at this serial must list if they still exist."""
        for action, orphan in list(self.orphans.items()):
            if orphan.serial <= serial:
                yield action, orphan

    # ---- inventories -------------------------------------------------------------------------------------------

    def ask(self, serial: int, now: float) -> None:
        """Record an inventory request."""
        self.asked.append(serial)
        self.asked_s = now

    def answered(self) -> int | None:
        """Match an inventory to its request and return the serial up to which it is complete. None: not requested, or
        stale.
        """
        if not self.asked:
            return None
        serial = self.asked.popleft()
        if self.stale_requests:
            self.stale_requests -= 1
            return None
        return serial

    def inherit_requests(self, lost: Node) -> None:
        """Take over the unanswered inventory requests of the same incarnation, which was counted as lost."""
        if lost.incarnation == self.incarnation:
            self.asked = lost.asked
            self.stale_requests = len(lost.asked)


def place(nodes: Iterable[Node], action: str, kind: str, units: Mapping[str, int], resource: str) -> Node | None:
    """Return the node whose pool's resource has the highest score among those that fit (`ResourceSpec.score`; for plain
    counts, the one with the most free units); the first of them where equal.
    """
    best: Node | None = None
    wanted = units.get(resource, 0)
    alone = len(units) == 1 and resource in units
    highest = -math.inf
    for node in nodes:
        known = node.resources.get(resource)
        if known is None:
            if wanted:
                continue
            score = 0.0
        elif known.spec is PLAIN:  # as `most_free`, without the calls: evaluated for every node and grant
            score = known.free
            if score < wanted:
                continue
        else:
            score = known.spec.score(known, wanted)
        if score <= highest or not node.ready or kind not in node.kinds or action in node.orphans:
            continue
        if (alone and known is not None and known.spec is PLAIN) or node.has_free(units):
            best, highest = node, score
    return best


def spread(
    wanted: int, nodes: Iterable[Node], resource: str, at_least: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the units that each node must own so that they add up to `wanted` (or the capacity), as evenly as
    possible.

    Nodes with running work keep at least its units, and nodes in `at_least` get at least that many; then the sum may
    exceed `wanted`. Deterministic: the remainder is assigned by name. O(nodes log nodes).
    """
    ordered = sorted(nodes, key=lambda node: node.name)
    capacity = {node.name: node.capacity.get(resource, 0) for node in ordered}
    shares = {
        node.name: min(max(node.taken(resource), (at_least or {}).get(node.name, 0)), capacity[node.name])
        for node in ordered
    }
    level, left = _level(wanted - sum(shares.values()), [(shares[name], capacity[name]) for name in shares])
    for name, least in shares.items():
        shares[name] = max(least, min(level, capacity[name]))
    for name, share in shares.items():
        if left > 0 and share == level and share < capacity[name]:
            shares[name] += 1
            left -= 1
    return shares


def _level(extra: int, spans: list[tuple[int, int]]) -> tuple[int, int]:
    """Distribute `extra` units evenly over spans (low, high), like water: (common level, remainder).

    Sweeps over the marks, at each of which the number of rising spans changes.
    """
    marks = sorted([(low, 1) for low, high in spans if low < high] + [(high, -1) for low, high in spans if low < high])
    level = rising = 0
    for mark, change in marks:
        if extra < rising * (mark - level):
            break
        extra -= rising * (mark - level)
        level, rising = mark, rising + change
    if rising <= 0 or extra <= 0:
        return level, 0
    return level + extra // rising, extra % rising
