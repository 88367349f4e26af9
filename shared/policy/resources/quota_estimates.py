"""Learned amounts: what an action that does not know its amount reserves of a quota.

The estimate is the 0.8 quantile of what attempts of the same tenant, work and quota have used. It is learned one value
at a time: a value above it raises its logarithm by four steps, one below lowers it by one. So it is above four values of
five, whatever their distribution, and one absurd value moves it by one step: a mean with its deviation would follow that
value (tests/shared/policy/resources/test_quota_estimates.py replays both). A higher quantile would reserve more than is
used, and attempts would wait for amounts that are given back; a lower one would exceed the limit more often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shared.policy.model.quotas import FIRST_ESTIMATE, QuotaLimits

QUANTILE: Final = 0.8
LEAST: Final = 1e-6
"""Least value that is learned: its logarithm is finite."""
LAST_STEP: Final = 0.1
"""Step of the logarithm after the first values: 10 % up and 2.5 % down at most."""
MOST_KEYS: Final = 1024
"""Most estimates that are kept: those that were learned last."""

EstimateKey = tuple[str, str, str]
"""(Tenant, task or kind, quota)."""


class Estimate(NamedTuple):
    """One estimate."""

    amount: float
    values: int
    """Number of values that it was learned from, at most 1,000."""


@dataclass(slots=True)
class QuotaEstimates:
    """Estimates by key. Each call is O(1), `changed_since` O(changed)."""

    by_key: dict[EstimateKey, Estimate] = field(default_factory=dict)
    """In the order of their last change."""
    versions: dict[EstimateKey, int] = field(default_factory=dict)
    """Key -> number of its last change, in the same order."""
    version: int = 0
    """Number of the newest change."""

    def learn(self, key: EstimateKey, used: float) -> None:
        """Learn what one attempt has used."""
        used, known = max(used, LEAST), self.by_key.get(key)
        if known is None:
            self.restore(key, Estimate(used, 1))
            return
        step = max(LAST_STEP, 1.0 / (known.values + 1))
        away = QUANTILE if used > known.amount else QUANTILE - 1.0 if used < known.amount else 0.0
        moved = known.amount * math.exp(step * away / QUANTILE)
        beyond = moved > used if used > known.amount else moved < used
        self.restore(key, Estimate(used if beyond else moved, min(known.values + 1, 1000)))

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
        limit of 0 gives nothing anyway.
        """
        known = self.by_key.get(key)
        amount = FIRST_ESTIMATE if known is None else known.amount
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
