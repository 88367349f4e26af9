"""Learned durations of work by kind: for backfill, admission and fair charging."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

UNKNOWN_FRACTION = 0.1
"""Share of its timeout that work of an unseen kind is expected to take: timeouts are set far above the usual
duration."""


Key = tuple[str, str, str]
"""(tenant, task, kind): work that is expected to take equally long."""


@dataclass(slots=True)
class Durations:
    """Exponentially weighted mean and variance of single-unit seconds by key; bounded to `most` keys.

    Single-unit seconds are what work would have taken on one unit (`Elasticity.single`), so that executions on few and
    on many units are comparable. For work that is not elastic they are its execution seconds.
    """

    weight: float = 0.1
    """Weight of the newest value: about the last twenty count."""
    most: int = 4096
    _by_key: dict[Key, tuple[float, float]] = field(default_factory=dict)
    """Key -> (mean in seconds, variance in seconds squared)."""

    def learn(self, key: Key, single_s: float) -> None:
        """Learn one execution."""
        mean, variance = self._by_key.pop(key, (single_s, 0.0))  # popped and set again: the dict's order is by last use
        away = single_s - mean
        step = self.weight * away
        self._by_key[key] = mean + step, (1.0 - self.weight) * (variance + away * step)
        if len(self._by_key) > self.most:
            del self._by_key[next(iter(self._by_key))]

    def expect(self, key: Key, timeout_s: float) -> float:
        """Expected seconds, never more than the timeout."""
        known = self._by_key.get(key)
        return min(timeout_s, timeout_s * UNKNOWN_FRACTION if known is None else known[0])

    def single(self, key: Key) -> float | None:
        """Expected single-unit seconds; None for an unseen kind."""
        known = self._by_key.get(key)
        return None if known is None else known[0]

    def spread(self, key: Key) -> float | None:
        """Standard deviation of the single-unit seconds, 0 after the first; None for an unseen kind."""
        known = self._by_key.get(key)
        return None if known is None else sqrt(known[1])

    def known(self, key: Key) -> float:
        """Expected seconds from observations; 0 for an unseen kind.

        For the order of work outside batches. If the first requests' keys contained a guess, all requests that arrive
        after the first few ends would overtake them.
        """
        known = self._by_key.get(key)
        return 0.0 if known is None else known[0]
