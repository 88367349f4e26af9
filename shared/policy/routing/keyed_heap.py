"""Ids ordered by a key that may change: waiting calls, times, idle pins.

A heap of (key, id) beside the present key of each id. An entry is stale if its id has another key or none. Stale
entries are skipped at the head. They are removed when they are more than the present ids and `STALE_KEPT`, so memory
is O(present ids).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", float, tuple[float, float, int])

STALE_KEPT: Final = 64
"""Stale entries that are always tolerated, so that a small heap is not rebuilt often."""


@dataclass(slots=True)
class KeyedHeap(Generic[Key]):
    """Ids by key, the smallest first. Equal keys are ordered by id. Each method is O(log ids), amortised."""

    _keys: dict[str, Key] = field(default_factory=dict)
    _heap: list[tuple[Key, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        """Every id in order. O(ids log ids)."""
        return iter(sorted(self._keys, key=lambda name: (self._keys[name], name)))

    def key(self, name: str) -> Key:
        """Key of an id.

        Raises:
            KeyError: it is not here.
        """
        return self._keys[name]

    def set(self, name: str, key: Key) -> None:
        """Add an id, or change its key. A key must not contain NaN, which has no order."""
        if self._keys.get(name) == key:
            return
        self._keys[name] = key
        heapq.heappush(self._heap, (key, name))
        self._remove_stale()

    def discard(self, name: str) -> Key | None:
        """Remove an id. Returns its key; None if it is not here."""
        key = self._keys.pop(name, None)
        if key is not None:
            self._remove_stale()
        return key

    def first(self) -> tuple[Key, str] | None:
        """Smallest key and its id; None if the heap is empty."""
        heap = self._heap
        while heap:
            key, name = heap[0]
            if self._keys.get(name) == key:
                return heap[0]
            heapq.heappop(heap)
        return None

    def pop(self) -> tuple[Key, str] | None:
        """Remove the first id. Returns its key and itself; None if the heap is empty."""
        found = self.first()
        if found is not None:
            heapq.heappop(self._heap)
            del self._keys[found[1]]
        return found

    def _remove_stale(self) -> None:
        if len(self._heap) > 2 * len(self._keys) + STALE_KEPT:
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapq.heapify(self._heap)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert len(self._heap) <= 2 * len(self._keys) + STALE_KEPT, "stale entries are removed"
        entries = set(self._heap)
        assert all((key, name) in entries for name, key in self._keys.items()), "each id has its entry"
