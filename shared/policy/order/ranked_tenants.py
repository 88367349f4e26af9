"""Waiting tenants by virtual time: a heap with outdated entries, which are removed when they reach its top.

Costs, with n waiting tenants: a change and the first tenant O(log n) amortised; a walk over the first k O(k log k), and
the outdated entries that it passes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

COMPACT_ABOVE = 64
"""Outdated entries that the heap may hold, beyond the number of waiting tenants."""


@dataclass(slots=True)
class RankedTenants:
    """Tenants in the order of (virtual time, name)."""

    _times: dict[str, float] = field(default_factory=dict)
    """Tenant -> virtual time."""
    _heap: list[tuple[float, str]] = field(default_factory=list)
    """An entry for each tenant, and outdated ones."""

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._times

    def set(self, tenant: str, time: float) -> None:
        """Add a tenant, or change its virtual time."""
        times, heap = self._times, self._heap
        times[tenant] = time
        heapq.heappush(heap, (time, tenant))
        if len(heap) > 2 * len(times) + COMPACT_ABOVE:
            self._compact()

    def remove(self, tenant: str) -> None:
        """Remove a tenant."""
        times = self._times
        del times[tenant]
        if len(self._heap) > 2 * len(times) + COMPACT_ABOVE:
            self._compact()

    def first(self) -> tuple[float, str]:
        """Return the lowest virtual time and its tenant.

        Raises:
            IndexError: there is no tenant.
        """
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0]

    def __iter__(self) -> Iterator[str]:
        """Tenants in order; stop at any point. Meanwhile tenants may be removed, and nothing else may change.

        The heap stays as it is: a second heap holds the positions that can come next.
        """
        heap = self._heap
        nexts = [(heap[0], 0)] if heap else []
        last: tuple[float, str] | None = None
        while nexts:
            entry, at = heapq.heappop(nexts)
            if entry != last and self._times.get(entry[1]) == entry[0]:  # a tenant may have several equal entries
                last = entry
                yield entry[1]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(nexts, (heap[child], child))

    def _compact(self) -> None:
        self._heap = [(time, name) for name, time in self._times.items()]
        heapq.heapify(self._heap)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert {(time, name) for name, time in self._times.items()} <= set(self._heap), "an entry for each tenant"
        assert len(self._heap) <= 2 * len(self._times) + COMPACT_ABOVE, "the heap is bounded"
