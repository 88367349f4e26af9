"""Stimuli about quotas; a part of `stimuli.Stimulus`."""

from __future__ import annotations

from dataclasses import dataclass

from shared.policy.model.brakes import Brake
from shared.policy.model.quotas import Level, QuotaHold, QuotaLimits
from shared.policy.resources.quota_estimates import Estimate, EstimateKey


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """A quota was created, changed or deleted (None), or a new leader reads it. Amounts that are taken stay taken."""

    name: str
    limits: QuotaLimits | None
    changed_s: float | None = None
    """Time of the change; None: it is read from the store. A change ends exhaustion that began before it."""


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
    per_s: float | None = None
    """Refill at that time, per second; None: that of the rate."""
    most: float | None = None
    """`Level.most`."""
    new_s: float = 0.0
    """`Level.new_s`."""

    @property
    def level(self) -> Level:
        """The level."""
        return Level(self.used, self.at_s, self.per_s, self.most, self.new_s)


@dataclass(frozen=True, slots=True)
class BrakeRestored:
    """Brake of a quota (`resources.brakes`), from the store. Limits and holds come before it."""

    quota: str
    brake: Brake


@dataclass(frozen=True, slots=True)
class AmountRestored:
    """Estimate of what work uses of a quota, as a former leader has learned it."""

    key: EstimateKey
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class StoreStalled:
    """The store has not answered until now. What was granted before reaches its callers now: nothing was refilled."""

    lasted_s: float


QuotaEvent = QuotaSet | HoldRestored | LevelRestored | BrakeRestored | AmountRestored | StoreStalled
"""Stimuli of quotas. A new leader reads all but the last one from the store, before any other stimulus."""
