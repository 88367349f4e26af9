"""Answers of external services, applied to the quotas that limit calls of them.

Laws:
  - an answer counts once, and only for quotas that the attempt has taken: it is applied while the attempt's hold is
    known, so a report that is read again changes nothing;
  - a change of a brake that may free a quota is noted, so that waiting work is looked at. Nothing is polled.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.policy.model.brakes import Brake, Call
from shared.policy.model.results import Feedback
from shared.policy.resources.quotas import Quotas


def apply_feedback(quotas: Quotas, key: str, answers: Iterable[Feedback], now: float) -> None:
    """Apply the answers to the calls of one attempt. Call it before its hold (`QuotaHold.key`) is settled."""
    hold = quotas.holds.get(key)
    if hold is None:
        return
    for answer in answers:
        if answer.quota in hold.amounts and answer.quota in quotas.limits:
            call = Call(key, hold.at_s, len(quotas.holders.get(answer.quota, ())))
            quotas.brakes.answered(answer, call, now)
            quotas.changed[answer.quota] = None


def quota_changed(quotas: Quotas, name: str, changed_s: float | None, now: float) -> None:
    """Release the brake of a quota that an operator has changed; None: a new leader reads it, nothing has changed."""
    if name not in quotas.limits:
        quotas.brakes.by_quota.pop(name, None)
    elif changed_s is not None:
        quotas.brakes.resume(name, changed_s, now)


def restore_brake(quotas: Quotas, name: str, brake: Brake) -> None:
    """Restore the brake of a former leader. Limits and holds are restored before."""
    if name in quotas.limits:
        hold = quotas.holds.get(brake.probe)
        quotas.brakes.restore(name, brake, probing=hold is not None and name in hold.amounts)
        quotas.changed[name] = None
