"""Learned amounts: what an action that does not know its amount reserves of a quota.

The estimate is the 0.8 quantile of the last 32 uses of attempts of the same tenant, work and quota. So it is above four
uses of five, whatever their distribution, and one absurd use does not move it: a mean with its deviation would follow
that use (tests/shared/policy/resources/test_quota_estimates.py replays both). A higher quantile would reserve more than
is used, and attempts would wait for amounts that are given back; a lower one would exceed the limit more often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shared.policy.model.quotas import FIRST_ESTIMATE, QuotaLimits

QUANTILE: Final = 0.8
LAST: Final = 32
"""Number of uses that count."""
MOST_KEYS: Final = 1024
"""Most estimates that are kept: those that were learned last."""

EstimateKey = tuple[str, str, str]
"""(Tenant, task or kind, quota)."""


class Estimate(NamedTuple):
    """One estimate."""

    amount: float
    uses: tuple[float, ...]
    """The last uses that it was learned from, oldest first."""

    @classmethod
    def of(cls, uses: tuple[float, ...]) -> Estimate:
        """Return the estimate of these uses, at least one. Of few uses it is the largest."""
        rank = math.ceil(QUANTILE * (len(uses) + 1))
        return cls(sorted(uses)[min(rank, len(uses)) - 1], uses)


@dataclass(slots=True)
class QuotaEstimates:
    """Estimates by key. `learn` is O(`LAST`), `changed_since` O(changed), the others O(1)."""

    by_key: dict[EstimateKey, Estimate] = field(default_factory=dict)
    """In the order of their last change."""
    versions: dict[EstimateKey, int] = field(default_factory=dict)
    """Key -> number of its last change, in the same order."""
    version: int = 0
    """Number of the newest change."""

    def learn(self, key: EstimateKey, used: float) -> None:
        """Learn what one attempt has used."""
        known = self.by_key.get(key)
        self.restore(key, Estimate.of((*(() if known is None else known.uses), used)[-LAST:]))

    def restore(self, key: EstimateKey, estimate: Estimate) -> None:
        """Set an estimate, learned or stored by a former leader."""
        self.version += 1
        self.by_key.pop(key, None)
        self.versions.pop(key, None)
        self.by_key[key], self.versions[key] = estimate, self.version
        if len(self.by_key) > MOST_KEYS:
            oldest = next(iter(self.by_key))
            del self.by_key[oldest], self.versions[oldest]

    def expect(self, key: EstimateKey, limits: QuotaLimits | None) -> float:
        """Return the amount to reserve. It is at most the smallest limit, so that no action is unservable for it; a
        limit of 0 gives nothing anyway. It is never 0, which would fit a quota of which nothing is left.
        """
        known = self.by_key.get(key)
        amount = FIRST_ESTIMATE if known is None else known.amount or FIRST_ESTIMATE
        most = math.inf if limits is None else min([*limits.concurrency, *(rate.most for rate in limits.rates)])
        return min(amount, most) if most > 0 else amount

    def changed_since(self, version: int) -> dict[EstimateKey, Estimate]:
        """Return the estimates that have changed after this version."""
        changed: dict[EstimateKey, Estimate] = {}
        for key in reversed(self.versions):
            if self.versions[key] <= version:
                break
            changed[key] = self.by_key[key]
        return changed
