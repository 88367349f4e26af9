"""Changes of quotas' holds, encoded for the functions of `library/quotas.lua`.

They are written with the grant, the answer or the next stage, with the arithmetic of `shared.policy.resources.quotas`.
So a new leader reads the same state (tests/shared/bus/test_quotas.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from shared.policy.model.quotas import QuotaHold, Rate, Refund, Settled

_packed = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


class Taking(NamedTuple):
    """Hold of a new grant, with the rates that it takes from."""

    hold: QuotaHold
    rates: tuple[tuple[str, Rate], ...]
    """(Quota, rate) of which its amounts are taken."""


Change = Taking | QuotaHold | Settled
"""A hold that is taken with its rates, a hold without them, or the end of one."""


def pack(changes: Iterable[Change]) -> bytes:
    """Encode changes of holds for the functions of `library/quotas.lua`."""
    return _packed([_change(one) for one in changes])


def _change(change: Change) -> tuple[Any, ...]:
    match change:
        case Taking(hold, rates):
            levels = [_level(name, rate, hold.amounts[name], hold.at_s) for name, rate in rates]
            return hold.key, _stored(hold), levels
        case Settled():
            return change.key, False, [_refund(refund) for refund in change.refunds]
        case QuotaHold():
            return change.key, _stored(change), []


def _stored(hold: QuotaHold) -> str:
    return _json((*hold[:6], dict(hold.amounts))).decode()


def _refund(refund: Refund) -> tuple[str | float, ...]:
    level = _level(refund.quota, refund.rate, -refund.amount, refund.at_s)
    return level if refund.new_s is None else (*level, float(refund.new_s))


def _level(name: str, rate: Rate, amount: float, at_s: float) -> tuple[str | float, ...]:
    """Return an addition to a level. Numbers are floats: Lua must not count in another type than Python."""
    period = "" if rate.period_s is None else repr(float(rate.period_s))
    return f"{period} {name}", float(amount), float(rate.per_s), float(at_s), float(rate.most)
