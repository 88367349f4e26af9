"""Corrections of rates when an attempt ends with other amounts than it has taken: refunds and debits.

A refund follows the law of `level_history`. A debit is taken at the time of the end: then the level may exceed the
limit, and nothing is granted until it has refilled. It exceeds it by at most one full bucket (`most_debit`), because a
report comes from a caller, and a wrong one must not close a quota for long. A rate without refill counts all that was
used: what is spent is spent, also if the limit is raised later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from shared.policy.model.quotas import Amounts, Level, QuotaHold, Rate
from shared.policy.resources.level_history import LevelHistory

MOST_USED: Final = 1e9
"""Most that one attempt can have used of a quota: the most that it can ask for. A report of more is ignored."""
OLDEST: Final = -1
"""Serial of a take before all that this leader knows."""


@dataclass(slots=True)
class Settling:
    """What this leader knows of the takes whose attempts have not ended."""

    serial: int = 0
    """Serial of the newest increase of a level."""
    taken: dict[str, int] = field(default_factory=dict)
    """`QuotaHold.key` -> serial of its take; none for a hold of a former leader."""
    histories: dict[tuple[str, float | None], LevelHistory] = field(default_factory=dict)
    """(Quota, period) -> history of a rate that is refilled and of which this leader has granted something."""

    def begin(self, key: str) -> None:
        """Begin the take of a hold; `increase` follows for each of its rates."""
        self.serial += 1
        self.taken[key] = self.serial

    def increase(self, name: str, rate: Rate, level: float) -> None:
        """Note the level immediately before the newest increase."""
        if rate.period_s is not None:
            found = self.histories.get((name, rate.period_s))
            if found is None:
                found = self.histories[name, rate.period_s] = LevelHistory(self.serial)
            found.note(self.serial, level)

    def correction(self, hold: QuotaHold, name: str, rate: Rate, used: float, known: Level | None, now: float) -> float:
        """Return what a rate gets back from an attempt that has ended; negative: what is taken beyond its amount.

        `known`: its level; None: nothing was taken. Of a former leader's hold the levels since the grant are not known.
        It gives back what the rate would still lack if nothing else had been taken.
        """
        level = 0.0 if known is None else known.at(now, rate)
        surplus = hold.amounts[name] - used
        if surplus < 0:
            surplus = -min(-surplus, most_debit(rate, level))
            self.serial += 1  # of this increase
        if surplus > 0 and (known is None or hold.at_s < known.new_s):
            return 0.0  # it has taken nothing from this rate
        if surplus <= 0 or rate.period_s is None:  # never refilled, so it was never full since
            return surplus
        history, serial = self.histories.get((name, rate.period_s)), self.taken.get(hold.key, OLDEST)
        if serial == OLDEST:
            surplus = max(0.0, surplus - max(0.0, now - hold.at_s) * rate.per_s)
        elif history is None or serial < history.first:
            return 0.0  # the rate was changed after the grant
        return min(surplus, level) if history is None else history.refund(serial, surplus, level)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for history in self.histories.values():
            history.check()


def most_debit(rate: Rate, level: float) -> float:
    """Return the most that can be taken beyond the amount of a grant: up to two full buckets are missing then, and any
    amount of a rate without refill.
    """
    return max(0.0, 2 * rate.most - level) if rate.period_s is not None else math.inf


def believable(used: Amounts, taken: Amounts) -> dict[str, float]:
    """Return the amounts of a report that can be true: of quotas that the attempt took. A report comes from another
    process.
    """
    return {name: amount for name, amount in used.items() if name in taken and _is_amount(amount)}


def _is_amount(amount: float) -> bool:
    return math.isfinite(amount) and 0 <= amount <= MOST_USED
