"""Demand of waiting work that takes quotas: a pool needs units only for what its quotas let start.

Such work counts in the demand of its pool once it is granted. While it waits, as much of it counts as the quotas can
give now, by the mean amounts of the work that takes from the same quotas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shared.policy.model.quotas import ROUNDING, Amounts
from shared.policy.resources.quotas import Quotas


@dataclass(slots=True)
class WaitingWork:
    """Waiting actions that take from the same quotas."""

    count: int = 0
    units: int = 0
    """Units of the pool that they want together."""
    outside: int = 0
    """Units of those outside batches."""
    amounts: dict[str, float] = field(default_factory=dict)
    """Quota -> amounts that they need together."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Actions, units, and units outside batches."""
        return self.count, self.units, self.outside

    def change(self, sign: int, amounts: Amounts, units: int, *, outside: bool) -> None:
        """Add an action (1) or remove it (-1)."""
        self.count += sign
        self.units += sign * units
        self.outside += sign * units if outside else 0
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0.0) + sign * amount

    def startable(self, quotas: Quotas, now: float) -> int:
        """Return the number of them that the quotas can give now, by their mean amounts."""
        most: float = self.count
        for name, amount in self.amounts.items():
            if amount > 0:
                most = min(most, room(quotas, name, now) * self.count / amount)
        return max(0, math.floor(most + ROUNDING))


@dataclass(slots=True)
class QuotaDemand:
    """Waiting work of one pool that takes quotas. Memory: one entry for each set of quotas in use."""

    sets: dict[tuple[str, ...], WaitingWork] = field(default_factory=dict)

    def add(self, amounts: Amounts, units: int, *, outside: bool) -> None:
        """Add a waiting action; `outside`: it belongs to no batch."""
        key = _set_of(amounts)
        work = self.sets.get(key)
        if work is None:
            work = self.sets[key] = WaitingWork()
        work.change(1, amounts, units, outside=outside)

    def remove(self, amounts: Amounts, units: int, *, outside: bool) -> None:
        """Remove a waiting action."""
        key = _set_of(amounts)
        work = self.sets[key]
        work.change(-1, amounts, units, outside=outside)
        if not work.count:
            del self.sets[key]  # exactly nothing, without rounding errors

    def startable_units(self, quotas: Quotas, now: float) -> tuple[int, int]:
        """Return the units of the work that the quotas can give now: of all, and of that outside batches.

        Sets that share a quota each count it in full. O(sets * limits).
        """
        units = outside = 0
        for work in self.sets.values():
            part = work.startable(quotas, now) / work.count
            units += math.ceil(work.units * part - ROUNDING)
            outside += math.ceil(work.outside * part - ROUNDING)
        return units, outside


def _set_of(amounts: Amounts) -> tuple[str, ...]:
    return tuple(sorted(amounts) if len(amounts) > 1 else amounts)


def room(quotas: Quotas, name: str, now: float) -> float:
    """Return the amount of a quota that can be taken at once now; zero or less if nothing, or if it does not exist."""
    limits = quotas.limits.get(name)
    if limits is None or quotas.brakes.blocks(name, len(quotas.holders.of(name)), now):
        return 0.0
    held = [most - quotas.used.get(name, 0.0) for most in limits.concurrency]
    return min([*held, *(rate.most - quotas.missing(name, rate, now) for rate in limits.rates)], default=math.inf)
