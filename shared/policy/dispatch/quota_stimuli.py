"""Stimuli about quotas; a part of `stimuli.Stimulus`."""

from __future__ import annotations

from dataclasses import dataclass

from shared.policy.model.quotas import QuotaHold, QuotaLimits
from shared.policy.resources.quota_estimates import Estimate, EstimateKey


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """A quota was created, changed or deleted (None), or a new leader reads it. Amounts that are taken stay taken."""

    name: str
    limits: QuotaLimits | None


@dataclass(frozen=True, slots=True)
class HoldRestored:
    """Hold of an attempt of a former leader, from the store. The report or loss of its node ends it."""

    hold: QuotaHold


@dataclass(frozen=True, slots=True)
class LevelRestored:
    """Level of one rate of a quota, from the store."""

    quota: str
    period_s: float | None
    used: float
    at_s: float


@dataclass(frozen=True, slots=True)
class AmountRestored:
    """Estimate of what work uses of a quota, as a former leader has learned it."""

    key: EstimateKey
    estimate: Estimate


QuotaEvent = QuotaSet | HoldRestored | LevelRestored | AmountRestored
"""Stimuli of quotas. A new leader reads all of them from the store, before any other stimulus."""
