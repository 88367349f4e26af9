"""Times at which something is due, by key. Law: each key has at most one time (tests/.../test_timers.py).

A heap beside the present time of each key. Entries whose key has another time are stale. They are skipped at the head,
and removed when they are more than the keys and `STALE_KEPT`, so memory is O(keys).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import Final

from shared.policy.serving.model import InstanceId

Key = InstanceId | str
"""An instance, or the name of a holder."""
STALE_KEPT: Final = 64


@dataclass(slots=True)
class Timers:
    """Times by key. Each method is O(log keys), amortised."""

    _times: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)
    _serial: int = 0
    """Equal times are ordered by it: a name and an instance have no order."""

    def set(self, key: Key, at_s: float) -> None:
        """Set or change the time of a key; infinity removes it."""
        if at_s == inf:
            if self._times.pop(key, None) is None:
                return
        elif self._times.get(key) != at_s:
            self._times[key] = at_s
            self._serial += 1
            heapq.heappush(self._heap, (at_s, self._serial, key))
        if len(self._heap) > 2 * len(self._times) + STALE_KEPT:
            self._heap = [(time_s, number, key) for number, (key, time_s) in enumerate(self._times.items())]
            heapq.heapify(self._heap)

    def first_s(self) -> float:
        """Earliest time; infinity if there is none."""
        while self._heap and self._times.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def pop_due(self, now: float) -> Key | None:
        """Remove and return the key of the earliest time that has come; None if there is none."""
        if self.first_s() > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._times[key]
        return key
