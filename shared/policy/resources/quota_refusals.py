"""Why amounts can never be taken from quotas: for an action that is stuck, and for callers that are refused."""

from __future__ import annotations

from shared.policy.model.quotas import Amounts
from shared.policy.resources.quotas import Quotas, exceeds


def why_never(quotas: Quotas, amounts: Amounts) -> str:
    """Return why these amounts can never be taken under the present limits; empty if they can, now or later. O(limits
    of the named quotas).
    """
    for name, amount in amounts.items():
        limits = quotas.limits.get(name)
        if limits is None:
            return f"there is no quota {name!r}"
        for most in limits.concurrency:
            if exceeds(amount, most):
                return f"it needs {amount:g} of the quota {name!r}, whose concurrency is {most:g}"
        for rate in limits.rates:
            if exceeds(amount, rate.most):
                return f"it needs {amount:g} of the quota {name!r}, which gives {rate.most:g} at once"
            missing = 0.0 if rate.per_s else quotas.missing(name, rate, 0.0)
            if exceeds(missing + amount, rate.most):
                left = max(0.0, rate.most - missing)
                return f"it needs {amount:g} of the quota {name!r}, of which {left:g} are left and none is refilled"
    return ""
