"""Model services that the chunks of one node hold, as its reports say and later grants imply.

A grant makes its service resident, and what does not fit beside it leaves. So the next choice does not wait for a
report of the node, which decides what really leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from shared.policy.model.chunks import Chunk, Served

ROUNDING_GB: Final = 1e-6
"""Difference of sums of memory that counts as rounding."""


@dataclass(slots=True)
class ModelResidency:
    """Residency on one node. Each call is O(GPUs of the node + chunks that hold something)."""

    served: Served = field(default_factory=dict)
    """Model services of the node, as last reported."""
    device_gb: Sequence[float] = ()
    """Memory of each GPU."""
    _held: dict[Chunk, dict[str, float]] = field(default_factory=dict)
    """Chunk -> services that it holds -> beginning of the turn: the first grant since it became resident."""
    _used_s: dict[int, float] = field(default_factory=dict)
    """GPU -> time of its last grant."""

    def report(self, served: Served, device_gb: Sequence[float], busy: Iterable[tuple[Chunk, str]]) -> None:
        """Apply a report. `busy`: chunks in use, which hold their service, perhaps since the report was written."""
        self.served, self.device_gb, before = dict(served), tuple(device_gb), self._held
        resident = [(chunk, name) for name, one in served.items() for chunk in sorted(one.resident)]
        self._held = {}
        for chunk, name in [*resident, *busy]:
            self._held.setdefault(chunk, {})[name] = before.get(chunk, {}).get(name, -math.inf)

    def holds(self, chunk: Chunk, service: str) -> bool:
        """Return whether a chunk holds a service."""
        return service in self._held.get(chunk, ())

    def last_used_s(self, chunk: Chunk) -> float:
        """Return the time of the last grant on one of its GPUs; minus infinity: none."""
        return max(self._used_s.get(gpu, -math.inf) for gpu in chunk.gpus)

    def granted(self, chunk: Chunk, service: str, now: float) -> None:
        """Note a grant. `service` may be empty: the GPUs are used by something else."""
        for gpu in chunk.gpus:
            self._used_s[gpu] = now
        if not service:
            return
        if not self.holds(chunk, service):
            for other, name in list(self._in_the_way(chunk, service)):
                self._held[other].pop(name, None)
        here = self._held.setdefault(chunk, {})
        if here.get(service, -math.inf) == -math.inf:
            here[service] = now

    def leaving(self, chunk: Chunk, service: str) -> Iterator[tuple[str, float]]:
        """Yield the services that leave for a restore of this one, each with the beginning of its turn."""
        for other, name in self._in_the_way(chunk, service):
            yield name, self._held[other][name]

    def _in_the_way(self, chunk: Chunk, service: str) -> Iterator[tuple[Chunk, str]]:
        """Yield (chunk, service) of what has memory on a GPU that does not hold it and this service together."""
        here = [(other, name) for other, names in self._held.items() if other.overlaps(chunk) for name in names]
        for gpu in chunk.gpus:
            beside = [one for one in here if gpu in one[0].gpus and one != (chunk, service)]
            needed = math.fsum([self._gb(service), *(self._gb(name) for _, name in beside)])
            if needed > self._memory_gb(gpu) + ROUNDING_GB:
                yield from beside

    def _gb(self, service: str) -> float:
        one = self.served.get(service)
        return 0.0 if one is None else one.awake_gb

    def _memory_gb(self, gpu: int) -> float:
        return self.device_gb[gpu] if gpu < len(self.device_gb) else 0.0
