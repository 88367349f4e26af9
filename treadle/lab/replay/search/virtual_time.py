"""Virtual time: callbacks at moments, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True)
class VirtualTime:
    """Callbacks by time; those of one moment in the order in which they were added."""

    now: float = 0.0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _serials: count[int] = field(default_factory=count)

    def at(self, time_s: float, do: Callable[[], None]) -> None:
        """Call `do` at a time; at once after the present callbacks if it has passed."""
        heapq.heappush(self._heap, (max(self.now, time_s), next(self._serials), do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Call `do` after a delay."""
        self.at(self.now + delay_s, do)

    def step(self) -> bool:
        """Run the next callback. Returns False if there is none."""
        if not self._heap:
            return False
        self.now, _, do = heapq.heappop(self._heap)
        do()
        return True
