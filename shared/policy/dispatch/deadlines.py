"""Deadlines of unanswered actions."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

COMPACT_ABOVE = 64
"""Entries of answered actions that the heap may hold, beyond the number of unanswered ones."""


@dataclass(slots=True)
class Deadlines:
    """A heap with lazy deletion: push O(log n), drop O(1) amortised, O(log n) for each that is due."""

    _heap: list[tuple[float, str]] = field(default_factory=list)
    _live: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._live)

    def push(self, at_s: float, action_id: str) -> None:
        """Set the action's deadline, absolute seconds."""
        self._live[action_id] = at_s
        heapq.heappush(self._heap, (at_s, action_id))

    def drop(self, action_id: str) -> None:
        """Remove the deadline of an action that is answered (or was already due)."""
        self._live.pop(action_id, None)
        if len(self._heap) > COMPACT_ABOVE + 2 * len(self._live):
            self._heap = [(at_s, name) for name, at_s in self._live.items()]
            heapq.heapify(self._heap)

    def due(self, now: float) -> Iterator[str]:
        """Yield the actions that are due, each once, earliest first. More may be dropped meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            at_s, action_id = heapq.heappop(self._heap)
            if self._live.get(action_id) == at_s:
                del self._live[action_id]
                yield action_id

    def is_due(self, now: float) -> bool:
        """Return whether `due` would yield an action. O(1) amortised."""
        first = self.first()
        return first is not None and first[0] <= now

    def first(self) -> tuple[float, str] | None:
        """Return the earliest deadline with its action. O(1) amortised."""
        while self._heap and self._live.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
