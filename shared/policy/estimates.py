"""How long work of a kind takes, from what has been seen: for backfill, admission and fair charging."""

from __future__ import annotations

from dataclasses import dataclass, field

UNKNOWN_FRACTION = 0.1
"""Share of its timeout that work of an unseen kind is taken to last: timeouts are set far above the usual case."""


@dataclass(slots=True)
class Durations:
    """Exponentially weighted mean of execution seconds by (tenant, task, kind); bounded to `most` keys."""

    weight: float = 0.1
    """Of the newest value: about the last twenty count."""
    most: int = 4096
    _mean: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def seen(self, key: tuple[str, str, str], seconds: float) -> None:
        """Learn one execution."""
        known = self._mean.pop(key, None)  # popped and set again: the dict's order is by last use
        self._mean[key] = seconds if known is None else known + self.weight * (seconds - known)
        if len(self._mean) > self.most:
            del self._mean[next(iter(self._mean))]

    def expect(self, key: tuple[str, str, str], timeout_s: float) -> float:
        """Expected seconds, never more than the timeout."""
        return min(timeout_s, self._mean.get(key, timeout_s * UNKNOWN_FRACTION))

    def known(self, key: tuple[str, str, str]) -> float:
        """Expected seconds from what was seen; 0 for an unseen kind.

        For the order of work outside batches: were a guess put into the first requests' keys, all that come after the
        first few ends would overtake them.
        """
        return self._mean.get(key, 0.0)
