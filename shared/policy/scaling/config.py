"""Planner configuration: choices that the paper leaves open, and our differences from it, as switches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.policy.scaling.history import WINDOW


@dataclass(frozen=True)
class PlannerConfig:
    """Configuration of a planner. The defaults are Treadle's; `PAPER` plans as DistRS does."""

    strictness: float = 1.0
    """Strictness of the timeout-aware rule (simulation.py)."""
    window: int = WINDOW
    """Complete batches of a task that count."""
    trade: bool = True
    """Exchange units between pools after the sequential search."""
    progress: bool = True
    """Use the progress that trainers report, at the next snapshot."""
    paced: bool = True
    """Estimate the pace of a rollout from its arrivals so far if no trainer reports it."""
    hints: bool = True
    """Warm up at the opening hint, before the first request arrives."""
    review_s: float = 10.0
    """Seconds from a decision to the next review while batches are open; infinite: only batch events cause
    decisions."""
    look_ahead_s: float = 15.0
    """Look-ahead: hold units needed within this time (at least `review_s`) plus a cold start; infinite: needed at any
    time."""
    surprise_s: float = 1.0
    """Seconds from a decision to the earliest check for surprises: requests that wait for units planned for later, or
    longer than the timeout-aware rule permits. A surprise causes a new decision."""
    stabilization_s: float = 5.0
    """Release no units that were needed within this time or a cold start, whichever is longer; 0: release at once."""
    explains: bool = True
    """Simulate one unit less, to explain the reason."""


PAPER = PlannerConfig(
    window=1,
    trade=False,
    progress=False,
    paced=False,
    hints=False,
    review_s=math.inf,
    look_ahead_s=math.inf,
    stabilization_s=0.0,
    explains=False,
)
