"""Rankings of nodes: orders that are kept while nodes change, so that no decision has to look at all of them.

Each change of a node adds its name to one log. A ranking reads the log when it is next used, and moves only the nodes
named since then. So a change costs one append, and in each ranking that is in use a search of O(log nodes) and a move
of at most 8 bytes for each node (1 us for 4,000 nodes).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shared.policy.resources.ledger import Node

Key = tuple[float, ...]
"""Position of a node; smaller is first. Nodes with equal keys are ordered by name."""
KeyOf = Callable[[Node], Key | None]
"""Key of a node; None: it is not ranked."""

MOST_RANKINGS: Final = 256
"""Most rankings that are kept. The one that was used least recently is removed."""
CHANGES_KEPT: Final = 8
"""Changes in the log for each node, beside 1,024, above which all rankings are brought up to date and the log is
cleared."""


@dataclass(slots=True)
class Ranking:
    """Nodes in the order of (key, name), as far as the log has been read."""

    key_of: KeyOf
    entries: list[tuple[Key, str]] = field(default_factory=list)
    """Ascending. Do not change the list."""
    read: int = 0
    """Length of the part of the log that has been read."""
    _keys: dict[str, Key] = field(default_factory=dict)

    def put(self, name: str, key: Key | None) -> None:
        """Set the key of a node; None: it is not ranked."""
        old = self._keys.get(name)
        if old == key:
            return
        if old is not None:
            del self.entries[bisect_left(self.entries, (old, name))]
        if key is None:
            del self._keys[name]
        else:
            self._keys[name] = key
            insort(self.entries, (key, name))

    def fill(self, nodes: Mapping[str, Node]) -> None:
        """Rank all nodes. O(nodes log nodes)."""
        self._keys = {name: key for name, node in nodes.items() if (key := self.key_of(node)) is not None}
        self.entries = sorted((key, name) for name, key in self._keys.items())


@dataclass(slots=True)
class Rankings:
    """Rankings of the present nodes, and the log of changes that they follow."""

    present: Mapping[str, Node]
    changed: dict[str, None] = field(default_factory=dict)
    """Nodes that have changed since the last scheduling round. A dict, so that repetitions take them in one order."""
    _log: list[str] = field(default_factory=list)
    _rankings: dict[Hashable, Ranking] = field(default_factory=dict)
    """By what they rank for; the one used least recently first."""

    def __getstate__(self) -> tuple[Mapping[str, Node], dict[str, None]]:
        """State without rankings, for a log of the dispatcher: they are made again when they are used."""
        return self.present, self.changed

    def __setstate__(self, state: tuple[Mapping[str, Node], dict[str, None]]) -> None:
        self.present, self.changed = state
        self._log, self._rankings = [], {}

    def touch(self, name: str) -> None:
        """Record that a node has changed, has joined or has left."""
        self._log.append(name)
        self.changed[name] = None

    def shorten(self) -> None:
        """Clear the log if it is long. Call it between changes: keys are computed."""
        if len(self._log) > CHANGES_KEPT * len(self.present) + 1024:
            for ranking in self._rankings.values():
                self._catch_up(ranking)
                ranking.read = 0
            self._log.clear()

    def get(self, purpose: Hashable, make: Callable[[], KeyOf]) -> Ranking:
        """Return the ranking for a purpose, up to date. `make`: returns its keys' function, if it is a new one.

        O(changes since the last use * log nodes); O(nodes log nodes) for a new one.
        """
        ranking = self._rankings.pop(purpose, None)
        if ranking is None:
            ranking = Ranking(make(), read=len(self._log))
            ranking.fill(self.present)
            if len(self._rankings) >= MOST_RANKINGS:
                del self._rankings[next(iter(self._rankings))]
        elif ranking.read < len(self._log):
            self._catch_up(ranking)
        self._rankings[purpose] = ranking
        return ranking

    def _catch_up(self, ranking: Ranking) -> None:
        put, key_of, present = ranking.put, ranking.key_of, self.present
        for name in set(self._log[ranking.read :]):
            node = present.get(name)
            put(name, None if node is None else key_of(node))
        ranking.read = len(self._log)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for purpose, ranking in self._rankings.items():
            self._catch_up(ranking)
            entries = ranking.entries
            ranking.fill(self.present)
            assert entries == ranking.entries, f"{purpose}: a node has changed, and the change is not in the log"
