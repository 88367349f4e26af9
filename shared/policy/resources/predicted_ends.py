"""Holds of quotas by the predicted end of their attempts: when concurrency will be free, and how much is held then."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Final

Holder = tuple[float, str, float]
"""(Predicted end, `QuotaHold.key`, amount)."""
END_OF_KEYS: Final = "\U0010ffff"
"""Comes after every `QuotaHold.key`."""


@dataclass(slots=True)
class PredictedEnds:
    """Quota -> its holders, ascending; no entry for a quota without. A change moves 8 bytes for each holder."""

    by_quota: dict[str, list[Holder]] = field(default_factory=dict)

    def add(self, quota: str, holder: Holder) -> None:
        """Add a holder."""
        insort(self.by_quota.setdefault(quota, []), holder)

    def remove(self, quota: str, end_s: float, key: str) -> bool:
        """Remove a holder; False if it was the last one of its quota."""
        holders = self.by_quota[quota]
        del holders[bisect_left(holders, (end_s, key))]
        if not holders:
            del self.by_quota[quota]
        return bool(holders)

    def of(self, quota: str) -> list[Holder]:
        """Holders of a quota."""
        return self.by_quota.get(quota, [])

    def held_after(self, quota: str, used: float, at_s: float) -> float:
        """Return the amount that is predicted to be held after that time. O(the smaller side of it).

        `used`: amount that is held now.
        """
        holders = self.of(quota)
        at = bisect_right(holders, (at_s, END_OF_KEYS, 0.0))
        if at > len(holders) // 2:
            return sum(amount for _, _, amount in holders[at:])
        return used - sum(amount for _, _, amount in holders[:at])
