"""Cores shared fairly by what runs on them: processor sharing with a limit for each job (the kernel's CFS).

Law: every job gets the same share of the cores, but no more than it can use; what it leaves is shared among the others.
Jobs that can use as much as each other progress alike, so each kind keeps one clock: a job is over when the clock has
gone on by its work. Each change costs O(widths + log jobs).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Alike:
    """Jobs of one width."""

    clock: float = 0.0
    """Core-seconds that each job has got that was there all the time."""
    rate: float = 0.0
    """Cores that each of them has now."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """Heap: (clock at its end, job)."""


@dataclass(slots=True)
class SharedCores:
    """One node's cores, and the jobs on them."""

    cores: int
    now_s: float = 0.0
    used_core_s: float = 0.0
    """Core-seconds that jobs have got."""
    _alike: dict[int, _Alike] = field(default_factory=dict)
    """By width."""

    def join(self, now_s: float, job: int, width: int, core_s: float) -> None:
        """A job begins that can use so many cores and needs so many core-seconds."""
        self._advance(now_s)
        alike = self._alike.setdefault(width, _Alike())
        heapq.heappush(alike.ends, (alike.clock + core_s, job))
        self._share()

    def next_end_s(self) -> float | None:
        """When the next job ends if nothing else happens; None without any."""
        ends = [
            self.now_s + max(0.0, alike.ends[0][0] - alike.clock) / alike.rate
            for alike in self._alike.values()
            if alike.ends
        ]
        return min(ends, default=None)

    def leave(self, now_s: float) -> int:
        """The job that ends now, which is what `next_end_s` said: it is gone."""
        self._advance(now_s)
        alike = min(
            (alike for alike in self._alike.values() if alike.ends),
            key=lambda alike: (alike.ends[0][0] - alike.clock) / alike.rate,
        )
        _, job = heapq.heappop(alike.ends)
        self._share()
        return job

    def _advance(self, now_s: float) -> None:
        passed_s, self.now_s = now_s - self.now_s, now_s
        for alike in self._alike.values():
            alike.clock += alike.rate * passed_s
            self.used_core_s += alike.rate * passed_s * len(alike.ends)

    def _share(self) -> None:
        """Pour the cores into the jobs, the narrowest first: what they cannot use is left for the wider ones."""
        left, jobs = float(self.cores), sum(len(alike.ends) for alike in self._alike.values())
        for width, alike in sorted(self._alike.items()):
            if alike.ends:
                alike.rate = min(float(width), left / jobs)
                left -= alike.rate * len(alike.ends)
                jobs -= len(alike.ends)
