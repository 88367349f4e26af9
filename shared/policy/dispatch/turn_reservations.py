"""Amounts of a quota that are reserved for the tenants whose turn comes before that of an action.

For a waiting action its amount is reserved, for the time at which what else it needs is free. If that is free now, the
amount is reserved as often as this may be taken: those like it follow it. For an action that needs nothing else the
whole quota is reserved. So a tenant that another quota limits keeps from a plentiful one only what it can use, and in a
quota that limits both the one in turn goes first (test_quota_turns.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.policy.model.quotas import ROUNDING, Amounts
from shared.policy.resources.quota_demand import room
from shared.policy.resources.quotas import Quotas


@dataclass(slots=True)
class TurnReservations:
    """Reservations in one quota that precede one action. Add them in the order of turns."""

    quotas: Quotas
    now: float
    quota: str
    amount: float
    """Amount that the action needs."""
    until_s: float
    """Time until which the action is predicted to hold it at most."""
    reserved: float = 0.0

    def add(self, needs: Amounts) -> bool:
        """Add that of an action with these needs, which include the quota and can be met by `until_s`. Return whether
        too little is left for it if the asking action takes its amount.
        """
        quotas, name = self.quotas, self.quota
        others = without(name, needs)
        most = times(quotas, others, self.now)
        if most:
            self.reserved += most * needs[name]
            return not quotas.fits({name: self.amount + self.reserved}, self.now)
        self.reserved += needs[name]
        at_s = max(quotas.free_at(others, self.now), overdue_until_s(quotas, others, self.now))
        return quotas.delays({name: self.reserved}, at_s, {name: self.amount}, self.until_s, self.now)


def overdue_until_s(quotas: Quotas, amounts: Amounts, now: float) -> float:
    """Return when these amounts of quotas that exist are free of overdue attempts, `now` at least: such an attempt is
    assumed to hold them for as long as it is already overdue.
    """
    held = [(name, most - amount) for name, amount in amounts.items() for most in quotas.limits[name].concurrency]
    return max([now, *(2 * now - quotas.ended_at(name, most, now) for name, most in held)])


def times(quotas: Quotas, amounts: Amounts, now: float) -> float:
    """Return how often these amounts can be taken now; infinity if there are none."""
    if not quotas.fits(amounts, now):
        return 0.0
    most = math.inf
    for name, amount in amounts.items():
        if amount > 0:
            most = min(most, room(quotas, name, now) / amount)
    return most if math.isinf(most) else max(1.0, math.floor(most + ROUNDING))


def without(quota: str, amounts: Amounts) -> Amounts:
    """Return the amounts of the other quotas."""
    return {name: amount for name, amount in amounts.items() if name != quota}
