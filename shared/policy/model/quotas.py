"""Values of quotas: limits, holds of attempts, and ends of holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Amounts = Mapping[str, float]
"""Quota -> amount that an action takes from it: the same amount from every limit of that quota."""
LEARNED: Final = 0.0
"""Amount of an action that leaves it to the mesh: the dispatcher estimates it from what earlier actions have used."""
FIRST_ESTIMATE: Final = 1.0
"""That estimate before anything was learned."""
NO_QUOTAS: Final[Amounts] = {}
"""Amounts of an action that takes none. Do not change it. (A dict, because logs encode it.)"""
ROUNDING: Final = 1e-9
"""Relative excess of a limit that counts as rounding."""


class Rate(NamedTuple):
    """Limit of the amount that is taken over time."""

    limit: float
    """Amount per period."""
    period_s: float | None = None
    """None: no refill, as for money."""
    burst: float | None = None
    """Most that can be taken at once; None: `limit`."""
    unit: str = ""
    """Name of what is counted, for people."""

    @property
    def most(self) -> float:
        """Amount of a full bucket."""
        return self.limit if self.burst is None else self.burst

    @property
    def per_s(self) -> float:
        """Refill per second."""
        return 0.0 if self.period_s is None else self.limit / self.period_s


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Limits of one quota."""

    concurrency: tuple[float, ...] = ()
    rates: tuple[Rate, ...] = ()
    """At most one for each period."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant -> weight of its share while several wait; others have 1. Empty: the tenants' own weights."""

    def __post_init__(self) -> None:
        numbers = [*self.concurrency, *(number for rate in self.rates for number in (rate.limit, rate.most))]
        if not all(number >= 0 and math.isfinite(number) for number in numbers):
            raise ValueError(f"limits must be finite and not negative: {self}")
        if not all(0 < weight < math.inf for weight in self.weights.values()):
            raise ValueError(f"weights must be positive: {self}")
        periods = [rate.period_s for rate in self.rates]
        if not all(period is None or (period > 0 and math.isfinite(period)) for period in periods):
            raise ValueError(f"periods must be positive: {self}")
        if len(set(periods)) < len(periods):
            raise ValueError(f"two rates have the same period: {self}")


class Level(NamedTuple):
    """Level of one rate. A change of the rate changes it (`resources.quota_changes`)."""

    used: float = 0.0
    """Amount missing from the full bucket at that time."""
    at_s: float = 0.0
    per_s: float | None = None
    """Refill at that time, per second; None: that of the rate."""
    most: float | None = None
    """Amount of the full bucket at that time; None: that of the rate."""
    new_s: float = 0.0
    """Time of the first take since the rate was set: earlier attempts have taken nothing from it."""

    def at(self, now: float, rate: Rate) -> float:
        """Amount missing from the full bucket now."""
        used, at_s, per_s, _, _ = self
        if now > at_s:
            used -= (now - at_s) * (rate.per_s if per_s is None else per_s)
        return max(0.0, used)

    def rate(self, period_s: float | None) -> Rate:
        """The rate at that time, as far as it is known."""
        most, per_s = self.most or 0.0, self.per_s or 0.0
        return Rate(most if period_s is None else per_s * period_s, period_s, most)


class QuotaHold(NamedTuple):
    """Amounts that one attempt has taken, from its grant until its end is reported."""

    action: str
    stage: int
    attempt: int
    node: str
    incarnation: str
    at_s: float
    """Time of the grant."""
    amounts: Amounts
    serial: int = 0
    """Serial of the grant, orders it against inventories; 0: granted by a former leader."""
    tenant: str = ""
    """Tenant of the action; not stored, so empty for a hold of a former leader."""

    @property
    def key(self) -> str:
        """Identity: an attempt may be an orphan while another one of its action is granted."""
        return hold_key(self.action, self.stage, self.attempt)


def hold_key(action: str, stage: int, attempt: int) -> str:
    """Identity of an attempt's hold."""
    return f"{action}/{stage}/{attempt}"


class Refund(NamedTuple):
    """Correction of one rate at the end of an attempt."""

    quota: str
    rate: Rate
    amount: float
    """Amount that is given back because it was not used; negative: taken, because more was used."""
    at_s: float
    new_s: float | None = None
    """New `Level.new_s`; None: it stays."""


RATES_CHANGED: Final = ""
"""Key of a `Settled` that ends no hold: rates were changed, and its refunds change their levels."""


class Settled(NamedTuple):
    """End of a hold, for the store."""

    key: str
    action: str
    refunds: tuple[Refund, ...] = ()


def exceeds(amount: float, most: float) -> bool:
    """Return whether an amount is more than a limit, apart from rounding."""
    return amount > most and amount > most + ROUNDING * max(1.0, most)
