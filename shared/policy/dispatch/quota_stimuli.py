"""Stimuli about quotas; a part of `stimuli.Stimulus`."""

from __future__ import annotations

from dataclasses import dataclass

from shared.policy.model.quotas import QuotaHold, QuotaLimits


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """A quota was created, changed or deleted (None), or a new leader reads it. What is taken of it stays taken."""

    name: str
    limits: QuotaLimits | None


@dataclass(frozen=True, slots=True)
class HoldRestored:
    """What an attempt of a former leader holds of quotas, from the store. The report or loss of its node ends it."""

    hold: QuotaHold


@dataclass(frozen=True, slots=True)
class LevelRestored:
    """Level of one rate of a quota, from the store."""

    quota: str
    period_s: float | None
    used: float
    at_s: float


QuotaEvent = QuotaSet | HoldRestored | LevelRestored
"""A new leader reads all of them from the store, before anything else."""
