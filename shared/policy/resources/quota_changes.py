"""Changes of rates: the level of a changed rate, for the ledger and for the store.

Law: what is free stays free, up to the new burst, and is refilled at the new rate from the change on. So no change of a
rate with the same period creates free amounts. A rate without refill keeps what was taken. Attempts that began before a
rate was changed, or was set anew, give nothing back to it (`settling`).
Oracle: tests/shared/policy/resources/test_quota_changes.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from shared.policy.model.quotas import RATES_CHANGED, Level, Rate, Refund, Settled
from shared.policy.resources.settling import Settling

if TYPE_CHECKING:
    from shared.policy.resources.quotas import Quotas


def change_rate(
    levels: MutableMapping[tuple[str, float | None], Level],
    settling: Settling,
    name: str,
    former: Rate,
    rate: Rate,
    now: float,
    *,
    new: bool = False,
) -> Iterator[Settled]:
    """Change the level of a rate with the rate, and yield that change for the store. None if the level is the same.

    `new`: it is set now. Its level is that of a deleted rate.
    """
    key = (name, rate.period_s)
    level = levels.get(key)
    if level is None:
        return
    most = former.most if level.most is None else level.most
    amount = 0.0 if rate.period_s is None else rate.most - most
    per_s = former.per_s if level.per_s is None else level.per_s
    if amount or per_s != rate.per_s or new:
        at_s = math.nextafter(max(now, level.at_s), math.inf)  # so that the store recognises a repeated change
        new_s = now if new else level.new_s
        levels[key] = Level(max(0.0, level.at(at_s, former) + amount), at_s, rate.per_s, rate.most, new_s)
        settling.histories.pop(key, None)
        yield Settled(RATES_CHANGED, "", (Refund(name, rate, -amount, at_s, now if new else None),))


def pause_refill(quotas: Quotas, since_s: float, now: float) -> None:
    """Take back what was refilled since then. Attempts give nothing back to these rates afterwards. O(levels)."""
    for key, level in list(quotas.levels.items()):
        name, period_s = key
        rates = quotas.rates_of({name: 0.0})
        rate = next((rate for _, rate in rates if rate.period_s == period_s), quotas.former.get(key))
        if rate is None:
            continue
        used, left = level.at(since_s, rate), level.at(now, rate)
        if used > left:
            at_s = math.nextafter(max(now, level.at_s), math.inf)
            quotas.levels[key] = level._replace(used=used, at_s=at_s, per_s=rate.per_s)
            quotas.settling.histories.pop(key, None)
            quotas.changes.append(Settled(RATES_CHANGED, "", (Refund(name, rate, left - used, at_s),)))
