"""How a planner plans: what the paper leaves open, and what we do otherwise, as switches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.policy.scaling.history import WINDOW


@dataclass(frozen=True)
class PlannerConfig:
    """How a planner plans. The defaults are ours; `PAPER` plans as DistRS does."""

    strictness: float = 1.0
    """Of the timeout-aware rule (simulation.py)."""
    window: int = WINDOW
    """Complete batches of a task that count."""
    trade: bool = True
    """Exchange units between pools after the sequential search."""
    progress: bool = True
    """Heed what trainers report, at the next look."""
    paced: bool = True
    """Take the pace of a rollout from its arrivals so far where no trainer reports it."""
    hints: bool = True
    """Warm up by the opening hint, before the first request comes."""
    review_s: float = 10.0
    """While batches are open, look again so long after the last decision; infinite: at batch boundaries alone."""
    ahead_s: float = 15.0
    """Hold what is needed within so long (at least `review_s`) and a cold start; infinite: what is needed at all."""
    surprise_s: float = 1.0
    """So long after a decision another is made if requests wait for units that were thought to be needed later, or wait
    longer than the timeout-aware rule lets them."""
    hold_s: float = 5.0
    """Give nothing back that was wanted so long ago, or a cold start ago, whichever is longer; 0: give back at once."""
    explains: bool = True
    """Simulate what one unit less would do, for the reason's sake."""


PAPER = PlannerConfig(
    window=1,
    trade=False,
    progress=False,
    paced=False,
    hints=False,
    review_s=math.inf,
    ahead_s=math.inf,
    hold_s=0.0,
    explains=False,
)
