"""Processor sharing with a limit for each job, as in the kernel's CFS.

Law: every job gets an equal share of the cores, at most what it can use; the other jobs share the rest. Jobs of equal
width progress equally, so each width has one clock. A job ends when the clock has advanced by its work. Each change
costs O(widths + log jobs).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class _EqualJobs:
    """Jobs of one width."""

    clock: float = 0.0
    """Core-seconds received by a job that was present from the beginning."""
    rate: float = 0.0
    """Cores of each job now."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """Heap: (clock at its end, job)."""


@dataclass(slots=True)
class SharedCores:
    """Cores of one node, and the jobs on them."""

    cores: int
    now_s: float = 0.0
    used_core_s: float = 0.0
    """Core-seconds received by all jobs."""
    _by_width: dict[int, _EqualJobs] = field(default_factory=dict)
    """By width."""

    def join(self, now_s: float, job: int, width: int, core_s: float) -> None:
        """Start a job that can use `width` cores and needs `core_s` core-seconds."""
        self._advance(now_s)
        alike = self._by_width.setdefault(width, _EqualJobs())
        heapq.heappush(alike.ends, (alike.clock + core_s, job))
        self._share()

    def next_end_s(self) -> float | None:
        """Time of the next end if no job starts; None without jobs."""
        ends = [
            self.now_s + max(0.0, alike.ends[0][0] - alike.clock) / alike.rate
            for alike in self._by_width.values()
            if alike.ends
        ]
        return min(ends, default=None)

    def leave(self, now_s: float) -> int:
        """Remove the job that ends now, at the time of `next_end_s`; return it."""
        self._advance(now_s)
        alike = min(
            (alike for alike in self._by_width.values() if alike.ends),
            key=lambda alike: (alike.ends[0][0] - alike.clock) / alike.rate,
        )
        _, job = heapq.heappop(alike.ends)
        self._share()
        return job

    def _advance(self, now_s: float) -> None:
        passed_s, self.now_s = now_s - self.now_s, now_s
        for alike in self._by_width.values():
            alike.clock += alike.rate * passed_s
            self.used_core_s += alike.rate * passed_s * len(alike.ends)

    def _share(self) -> None:
        """Divide the cores, the narrowest jobs first: cores that they cannot use remain for wider ones."""
        left, jobs = float(self.cores), sum(len(alike.ends) for alike in self._by_width.values())
        for width, alike in sorted(self._by_width.items()):
            if alike.ends:
                alike.rate = min(float(width), left / jobs)
                left -= alike.rate * len(alike.ends)
                jobs -= len(alike.ends)
