"""Who has how many units: the one ledger of nodes and what is granted on them.

Law: what a node holds, wanted or not, is booked until the node says it has ended or its incarnation is over. So on
every node, for every resource, what is booked never exceeds the capacity, and what is granted never exceeds the share
except while a share was lowered below what still runs; then nothing is granted there until enough has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shared.policy.resources.residency import Residency


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt that a node was told to stop and has not yet confirmed: nobody waits for it, its units are taken."""

    stage: int
    attempt: int
    units: Mapping[str, int]
    serial: int
    """Of its grant; orders it against inventories."""
    since_s: float


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
    """Units it was told to own, for resources that are scaled; others are owned whole."""
    used: dict[str, int] = field(default_factory=dict)
    orphans: dict[str, Orphan] = field(default_factory=dict)
    """Action -> what is left of it here. A node never holds two attempts of one action."""
    lines_up: frozenset[str] = frozenset()
    """Resources: what it is granted of them beyond its free units it starts by itself, in order, when they are free."""
    ready: bool = False
    """It has answered this leader's inventory; before that nothing is granted on it."""
    seen_s: float = 0.0
    asked: deque[int] = field(default_factory=deque)
    """Serial of the newest grant at each question for its inventory that is not answered, oldest first.

    Grants after it may be missing in the answer. Answers come in the order of the questions; where one is lost, the
    next one counts as older than it is: it proves less than it could, never more. One is asked in `overdue_s` at most.
    """
    unheard: int = 0
    """How many of them are older than our meeting it (again): their answers know nothing of what came between."""
    asked_s: float = float("-inf")
    images: Residency = field(default_factory=Residency)
    """Of its container engine."""

    def limit(self, resource: str) -> int:
        """Units it owns."""
        return self.share.get(resource, self.capacity.get(resource, 0))

    def free(self, resource: str) -> int:
        """Units that may be granted now; never negative."""
        share = self.share.get(resource)
        free = (self.capacity.get(resource, 0) if share is None else share) - self.used.get(resource, 0)
        return max(0, free)

    def holds(self, units: Mapping[str, int]) -> bool:
        """Are these units free now, all of them?"""
        for name, count in units.items():  # noqa: SIM110  # on the hot path: `all` takes twice as long
            if count > self.free(name):
                return False
        return True

    def fits(self, action: str, kind: str, units: Mapping[str, int]) -> bool:
        """Can it take this now, whole?"""
        return self.takes(action, kind) and self.holds(units)

    def takes(self, action: str, kind: str) -> bool:
        """Can it take this now, if it has the units?"""
        return self.ready and kind in self.kinds and action not in self.orphans

    def could_ever(self, kind: str, units: Mapping[str, int]) -> bool:
        """Could it take this when it owned everything and were empty?"""
        if kind not in self.kinds:
            return False
        for name, count in units.items():  # noqa: SIM110  # asked for every action that comes: `all` takes twice as long
            if self.capacity.get(name, 0) < count:
                return False
        return True

    def take(self, units: Mapping[str, int]) -> None:
        for name, count in units.items():
            self.used[name] = self.used.get(name, 0) + count

    def give_back(self, units: Mapping[str, int]) -> None:
        for name, count in units.items():
            self.used[name] -= count
            assert self.used[name] >= 0, f"{self.name} got back more {name} than it gave"

    # ---- strays ------------------------------------------------------------------------------------------------

    def orphan_ended(self, action: str, stage: int, attempt: int) -> None:
        """An attempt is over; if it was a stray its units are free."""
        stray = self.orphans.get(action)
        if stray is not None and (stray.stage, stray.attempt) == (stage, attempt):
            del self.orphans[action]
            self.give_back(stray.units)

    def orphans_until(self, serial: int) -> Iterator[tuple[str, Orphan]]:
        """Those an inventory asked at this serial must list if they are still there."""
        for action, stray in list(self.orphans.items()):
            if stray.serial <= serial:
                yield action, stray

    # ---- inventories -------------------------------------------------------------------------------------------

    def ask(self, serial: int, now: float) -> None:
        """Its inventory is asked for."""
        self.asked.append(serial)
        self.asked_s = now

    def answered(self) -> int | None:
        """An inventory has come: the serial up to which it is complete. None: it was not asked for, or long ago."""
        if not self.asked:
            return None
        serial = self.asked.popleft()
        if self.unheard:
            self.unheard -= 1
            return None
        return serial

    def remember(self, known: Node) -> None:
        """It was taken for dead and is the same incarnation: what it was asked then it will still answer."""
        if known.incarnation == self.incarnation:
            self.asked = known.asked
            self.unheard = len(known.asked)


def place(nodes: Iterable[Node], action: str, kind: str, units: Mapping[str, int], resource: str) -> Node | None:
    """The node with the most free units of the pool's resource among those that fit; the first of them where equal."""
    best: Node | None = None
    most = units.get(resource, 0) - 1
    alone = len(units) == 1 and resource in units
    for node in nodes:
        share = node.share.get(resource)  # as `free` has it: without a call, asked once a node for every grant
        free = (node.capacity.get(resource, 0) if share is None else share) - node.used.get(resource, 0)
        if free <= most or not node.ready or kind not in node.kinds or action in node.orphans:
            continue
        if alone or node.holds(units):
            best, most = node, free
    return best


def spread(
    wanted: int, nodes: Iterable[Node], resource: str, at_least: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Units each node shall own so that they add up to `wanted` (or all there is), as evenly as capacities allow.

    Nodes with running work keep at least that, and those named in `at_least` get so many; then the sum may be more than
    wanted. Deterministic: what does not divide evenly goes by name. O(nodes log nodes).
    """
    ordered = sorted(nodes, key=lambda node: node.name)
    capacity = {node.name: node.capacity.get(resource, 0) for node in ordered}
    shares = {
        node.name: min(max(node.used.get(resource, 0), (at_least or {}).get(node.name, 0)), capacity[node.name])
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
    """Pour `extra` units into vessels from their first to their last mark: (the level all reach, what is left over).

    Sweeps over the marks, at each of which the number of vessels that still rise changes.
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
