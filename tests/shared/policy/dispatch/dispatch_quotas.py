"""Quotas as the store keeps them: the arithmetic of the server-side functions, and an oracle of every window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.policy.dispatch.quota_stimuli import BrakeRestored, HoldRestored, LevelRestored, QuotaSet
from shared.policy.dispatch.stimuli import Restored
from shared.policy.model.brakes import Brake
from shared.policy.model.formulation import Grant
from shared.policy.model.quotas import QuotaHold, QuotaLimits, Rate, Settled


@dataclass(slots=True)
class StoredQuotas:
    """Limits, holds and levels in the store."""

    limits: dict[str, QuotaLimits]
    holds: dict[str, QuotaHold] = field(default_factory=dict)
    levels: dict[tuple[str, float | None], tuple[float, float]] = field(default_factory=dict)
    """(Quota, period) -> amount missing, time."""
    granted: dict[str, QuotaHold] = field(default_factory=dict)
    """Every hold of a written grant that may have begun."""
    brakes: dict[str, Brake] = field(default_factory=dict)
    unbegun: int = 0
    """Number of attempts that had not begun and gave something back."""
    fixed: frozenset[str] = frozenset({"search", "money"})
    """Quotas whose limits do not change."""

    def set(self, name: str, limits: QuotaLimits | None) -> None:
        if limits is None:
            self.limits.pop(name, None)
        else:
            self.limits[name] = limits

    def restored(self) -> list[Restored]:
        """What a new leader reads."""
        found: list[Restored] = [QuotaSet(name, limits) for name, limits in self.limits.items()]
        found += [LevelRestored(name, period_s, *level) for (name, period_s), level in self.levels.items()]
        found += [HoldRestored(hold) for hold in self.holds.values()]
        return found + [BrakeRestored(name, brake) for name, brake in self.brakes.items()]

    def grant(self, grant: Grant) -> None:
        """Take what a grant takes; a repeated write takes nothing more."""
        if grant.hold is None or grant.hold.key in self.holds:
            return
        self.holds[grant.hold.key] = self.granted[grant.hold.key] = grant.hold
        for name, rate in grant.rates:
            self._add(name, rate, grant.hold.amounts[name], grant.hold.at_s)

    def change(self, changes: Iterable[QuotaHold | Settled]) -> None:
        for change in changes:
            if isinstance(change, QuotaHold):
                self.holds[change.key] = change
            elif self.holds.pop(change.key, None) is not None:
                for refund in change.refunds:
                    self._add(refund.quota, refund.rate, -refund.amount, refund.at_s)
                if change.refunds:
                    self.unbegun += 1
                    del self.granted[change.key]

    def _add(self, name: str, rate: Rate, amount: float, at_s: float) -> None:
        used, since_s = self.levels.get((name, rate.period_s), (0.0, at_s))
        at_s = max(at_s, since_s)
        self.levels[name, rate.period_s] = (max(0.0, max(0.0, used - (at_s - since_s) * rate.per_s) + amount), at_s)

    def missing(self, name: str, rate: Rate, now: float) -> float:
        used, since_s = self.levels.get((name, rate.period_s), (0.0, now))
        return max(0.0, used - (now - since_s) * rate.per_s)

    def check_windows(self) -> None:
        """Assert that no window of the fixed quotas has more than its rates give."""
        for name in self.fixed:
            taken = sorted((hold.at_s, hold.amounts[name]) for hold in self.granted.values() if name in hold.amounts)
            for rate in self.limits[name].rates:
                for first, (begin_s, _) in enumerate(taken):
                    total = 0.0
                    for end_s, amount in taken[first:]:
                        total += amount
                        assert total <= rate.most + (end_s - begin_s) * rate.per_s + 1e-6, f"{name}: {rate}, {taken}"
