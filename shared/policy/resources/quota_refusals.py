"""Why amounts can never be taken from quotas, or not before some time: for an action that is stuck, and for refusals of
callers. All functions are O(limits of the named quotas).

Holds may give back what they have taken, when their attempts end. An action that is stuck waits for that, so it is
queued again then. A caller is refused only if that cannot help.
"""

from __future__ import annotations

from shared.policy.model.quotas import Amounts, Rate, exceeds
from shared.policy.resources.quotas import Quotas


def why_never(quotas: Quotas, amounts: Amounts, *, refunded: bool = False) -> str:
    """Return why these amounts can never be taken under the present limits; empty if they can, now or later.

    `refunded`: as if all present holds had given back all that they have taken.
    """
    for name, amount in amounts.items():
        limits = quotas.limits.get(name)
        if limits is None:
            return f"there is no quota {name!r}; create it with treadle quota set {name} --rate 10/s"
        for most in limits.concurrency:
            if exceeds(amount, most):
                return f"it needs {amount:.12g} of the quota {name!r}, whose concurrency is {most:.12g}"
        for rate in limits.rates:
            if exceeds(amount, rate.most):
                return f"it needs {amount:.12g} of the quota {name!r}, which gives {rate.most:.12g} at once"
            if rate.per_s:
                continue
            missing = _missing(quotas, name, rate, 0.0, refunded=refunded)
            if exceeds(missing + amount, rate.most):
                left = max(0.0, rate.most - missing)
                return (
                    f"it needs {amount:.12g} of the quota {name!r}, of which {left:.12g} are left and none is refilled"
                )
    return ""


def closed_until_s(quotas: Quotas, amounts: Amounts, now: float) -> float:
    """Return the time before which these amounts certainly cannot be taken together; at least `now`.

    It is exact if all present holds give back all that they have taken, and a probe that is under way succeeds.
    Limits for which `why_never` has a reason are left out.
    """
    at_s = now
    for name, rate in quotas.rates_of(amounts):
        if per_s := rate.per_s:
            needed = _missing(quotas, name, rate, now, refunded=True) + amounts[name]
            if exceeds(needed, rate.most):
                at_s = max(at_s, now + (needed - rate.most) / per_s)
    for name in amounts if quotas.brakes.by_quota else ():
        at_s = max(at_s, quotas.brakes.closed_s(name, now))
    return at_s


def _missing(quotas: Quotas, name: str, rate: Rate, now: float, *, refunded: bool) -> float:
    """Amount that is missing from a full bucket."""
    missing = quotas.missing(name, rate, now)
    return max(0.0, missing - quotas.used.get(name, 0.0)) if refunded else missing
