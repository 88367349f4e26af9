"""Quotas as SIMULATE sees them: their limits, and what is missing from their rates at the beginning of its clock.

The arithmetic is that of the ledger (`shared.policy.resources.quotas`). Work outside the simulated batches is not
foreseen: what it has taken counts, what it will take does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.policy.model.quotas import Amounts, Level, QuotaLimits, Rate
from shared.policy.scaling.workload import Stage

ROUNDING: Final = 1e-9
"""Relative excess of a limit that counts as rounding, as in the ledger."""


@dataclass(frozen=True)
class ObservedQuota:
    """Limits of a quota, the levels of its rates, and whether its provider gives anything."""

    limits: QuotaLimits
    levels: tuple[Level, ...] = ()
    """Level of each rate, in the order of the limits; a rate without one is full."""
    closed: str = ""
    """Reason why its provider gives nothing, as without credit; empty: it gives what the limits allow."""


class SupplyLimit(NamedTuple):
    """One limit of a quota."""

    most: float
    """Amount held at once, or amount of a full bucket."""
    per_s: float | None = None
    """Refill of a rate per second, 0 for a budget; None: it limits concurrency."""
    missing: float = 0.0
    """Amount missing from the bucket at the beginning."""
    text: str = ""
    """The limit for people: `10/s`."""


Supply = Mapping[str, Sequence[SupplyLimit]]
"""Quota -> its limits. A quota that is not named is not known, and counts as unlimited."""

UNLIMITED: Final[Supply] = {}
"""Supply without any limits. Do not change it."""
NOT_SET: Final = SupplyLimit(-1.0, text="not set")
"""Limit of a quota that does not exist: it gives nothing."""

PERIODS: Final = {1.0: "s", 60.0: "m", 3600.0: "h", 86400.0: "d"}
"""Seconds of a period -> its letter on the command line."""


def supply_at(now: float, observed: Mapping[str, ObservedQuota | None]) -> Supply:
    """Return the supply on a clock that begins now. O(limits)."""
    return {name: (NOT_SET,) if one is None else _limits(now, one) for name, one in observed.items()}


def _limits(now: float, one: ObservedQuota) -> tuple[SupplyLimit, ...]:
    if one.closed:
        return (SupplyLimit(NOT_SET.most, text=one.closed),)
    limits, levels = one.limits, one.levels
    held = [SupplyLimit(most, text=f"{most:,g} at once") for most in limits.concurrency]
    known = [*levels, *[Level()] * len(limits.rates)]
    rates = [
        SupplyLimit(rate.most, rate.per_s, level.at(now, rate), rate_text(rate))
        for rate, level in zip(limits.rates, known, strict=False)
    ]
    return (*held, *rates)


def rate_text(rate: Rate) -> str:
    """Format a rate: `10/s`, `200,000 tokens/m`, `3 in 5 s`, `50 usd in all`."""
    amount = f"{rate.limit:,.10g}" + (f" {rate.unit}" if rate.unit else "")
    if rate.period_s is None:
        return f"{amount} in all"
    letter = PERIODS.get(rate.period_s)
    return f"{amount}/{letter}" if letter else f"{amount} in {rate.period_s:g} s"


def exceeds(amount: float, most: float) -> bool:
    """Return whether an amount is more than a limit gives, apart from rounding."""
    return amount > most + ROUNDING * max(1.0, most)


def granted_in_s(supply: Supply, amounts: Amounts) -> float:
    """Return the seconds until the rates give these amounts together; infinity if a limit never does. Holds of
    concurrency do not count, because their ends are not known.
    """
    in_s = 0.0
    for name, amount in amounts.items():
        for limit in supply.get(name, ()):
            if exceeds(amount, limit.most):
                return math.inf
            if limit.per_s is None or not exceeds(limit.missing + amount, limit.most):
                continue
            if not limit.per_s:
                return math.inf
            in_s = max(in_s, (limit.missing + amount - limit.most) / limit.per_s)
    return in_s


def most_at_once(supply: Supply, stage: Stage, running: int) -> float:
    """Return the most visits of a stage that its quotas let run at once; infinite without a limit.

    A visit ends at its timeout. So those that run at one moment were granted within one timeout, and in such a window a
    rate gives a burst and its refill.

    Args:
        supply: the quotas.
        stage: the stage.
        running: visits of it that run now. They have taken what they need.
    """
    most = math.inf
    for name, amount in stage.quotas.items():
        for limit in supply.get(name, ()) if amount > 0 else ():
            if limit.per_s is None:
                visits = limit.most / amount
            else:
                refill = limit.per_s * stage.timeout_s
                left = max(0.0, limit.most - limit.missing) + refill
                visits = min((limit.most + refill) / amount, running + math.floor(left / amount + ROUNDING))
            most = min(most, max(float(running), math.floor(visits + ROUNDING)))
    return most


def short_limits(supply: Supply, stage: Stage, running: int) -> list[tuple[str, SupplyLimit]]:
    """Return the limits of a stage's quotas, first the one that lets the fewest of its visits run at once."""
    found = []
    for name, limits in supply.items():
        if stage.quotas.get(name, 0.0) > 0:
            found += [(most_at_once({name: (limit,)}, stage, running), name, limit) for limit in limits]
    return [(name, limit) for _, name, limit in sorted(found, key=lambda one: one[:2])]
