"""Quotas as the store keeps them: the arithmetic of the server-side functions, and an oracle of every window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shared.policy.dispatch.quota_stimuli import BrakeRestored, HoldRestored, LevelRestored, QuotaSet
from shared.policy.dispatch.stimuli import Restored
from shared.policy.model.brakes import Brake
from shared.policy.model.formulation import Grant
from shared.policy.model.quotas import RATES_CHANGED, QuotaHold, QuotaLimits, Rate, Settled

GRANT, DEBIT = 0, 1
"""Order of what happens at one time: a grant may precede a debit of the same moment."""


@dataclass(slots=True)
class StoredQuotas:
    """Limits, holds and levels in the store."""

    limits: dict[str, QuotaLimits]
    holds: dict[str, QuotaHold] = field(default_factory=dict)
    levels: dict[tuple[str, float | None], tuple[float, float, float, float, float]] = field(default_factory=dict)
    """(Quota, period) -> amount missing, time, refill, full bucket, time of the first take."""
    granted: dict[str, QuotaHold] = field(default_factory=dict)
    """Every hold of a written grant that may have begun."""
    brakes: dict[str, Brake] = field(default_factory=dict)
    unbegun: int = 0
    """Number of attempts that gave something back: they had not begun, or had used less."""
    given_back: dict[tuple[str, str, float | None], float] = field(default_factory=dict)
    """(Key of a hold, quota, period) -> most that a leader gave back of it, by the report of its attempt."""
    debits: dict[tuple[str, float | None], list[tuple[float, float]]] = field(default_factory=dict)
    """(Quota, period) -> time and amount of what was used beyond the amounts of holds."""
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

    def decided(self, changes: Iterable[QuotaHold | Settled]) -> None:
        """Note what a leader gives back. It was not used, also if that leader is lost with this command unwritten."""
        for change in changes:
            for refund in change.refunds if isinstance(change, Settled) else ():
                key = (change.key, refund.quota, refund.rate.period_s)
                self.given_back[key] = max(refund.amount, self.given_back.get(key, 0.0))

    def change(self, changes: Iterable[QuotaHold | Settled]) -> None:
        for change in changes:
            if isinstance(change, QuotaHold):
                self.holds[change.key] = change
            elif change.key == RATES_CHANGED:
                for refund in change.refunds:
                    level = self.levels.get((refund.quota, refund.rate.period_s))
                    if level is None or level[1] < refund.at_s:
                        self._add(refund.quota, refund.rate, -refund.amount, refund.at_s, refund.new_s)
            elif self.holds.pop(change.key, None) is not None:
                for refund in change.refunds:
                    self._add(refund.quota, refund.rate, -refund.amount, refund.at_s)
                    if refund.amount < 0:
                        debits = self.debits.setdefault((refund.quota, refund.rate.period_s), [])
                        debits.append((refund.at_s, -refund.amount))
                self.unbegun += any(refund.amount > 0 for refund in change.refunds)

    def _add(self, name: str, rate: Rate, amount: float, at_s: float, new_s: float | None = None) -> None:
        _, since_s, _, _, first_s = self.levels.get((name, rate.period_s), (0.0, at_s, rate.per_s, 0.0, at_s))
        at_s, first_s = max(at_s, since_s), first_s if new_s is None else new_s
        used = max(0.0, self.missing(name, rate, at_s) + amount)
        self.levels[name, rate.period_s] = (used, at_s, rate.per_s, rate.most, first_s)

    def missing(self, name: str, rate: Rate, now: float) -> float:
        """What lacks for a full bucket."""
        used, since_s, per_s = self.levels.get((name, rate.period_s), (0.0, now, rate.per_s))[:3]
        return max(0.0, used - (now - since_s) * per_s)

    def check_windows(self) -> None:
        """Assert that no window of the fixed quotas that ends with a grant has more than its rates give."""
        for name in self.fixed:
            for rate in self.limits[name].rates:
                taken = sorted(self._taken(name, rate))
                for first, (begin_s, _, _) in enumerate(taken):
                    total = 0.0
                    for end_s, order, amount in taken[first:]:
                        total += amount
                        most = rate.most + (end_s - begin_s) * rate.per_s + 1e-6
                        assert total <= most or order == DEBIT, f"{name}: {rate}, {taken}"

    def _taken(self, name: str, rate: Rate) -> Iterator[tuple[float, int, float]]:
        """Time, order at that time and amount of everything that was taken of a rate."""
        for key, hold in self.granted.items():
            if name in hold.amounts:
                yield hold.at_s, GRANT, hold.amounts[name] - self.given_back.get((key, name, rate.period_s), 0.0)
        for at_s, amount in self.debits.get((name, rate.period_s), ()):
            yield at_s, DEBIT, amount
