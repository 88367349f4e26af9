"""Ablations of Treadle's planner: the same trace without one part, under conditions in which the part matters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shared.policy.scaling.config import PAPER, PlannerConfig
from treadle.lab.replay.distrs.generate import SPREAD, TOKEN_NOISE, generate
from treadle.lab.replay.distrs.planner_policy import PlannerPolicy
from treadle.lab.replay.distrs.policies import OURS
from treadle.lab.replay.distrs.trace import RewardTrace

ITERATIONS = 6
"""Iterations of each run; fewer than the evaluation's, because there are many runs."""
PACE_NOISE = 0.2
"""Variation of the decoding speed from batch to batch: other tenants, other prompt lengths, a slow node."""
EVEN_SPREAD = 0.05
"""Spread of output lengths: nearly all samples are complete at once, as with answers of a fixed form."""
COLD_START_S = 30.0
"""Cold start of every worker: the image is present, a container and its runtime start."""


@dataclass(frozen=True)
class Condition:
    """A workload in which one part of the planner matters."""

    token_noise: float = TOKEN_NOISE
    spread: float = SPREAD
    cold_start_s: float = 0.0

    def trace(self, chance: np.random.Generator, tasks: int, iterations: int, size: int) -> RewardTrace:
        """Return a colocated trace."""
        trace = generate(
            chance,
            architecture="colocated",
            tasks=tasks,
            iterations=iterations,
            size=size,
            token_noise=self.token_noise,
            spread=self.spread,
        )
        return replace(trace, cold_starts_s=(self.cold_start_s,) * len(trace.stages))


CONDITIONS: Mapping[str, Condition] = {
    "as generated": Condition(),
    f"rollout pace varies by {PACE_NOISE:.0%}": Condition(token_noise=PACE_NOISE),
    f"cold start {COLD_START_S:.0f} s": Condition(cold_start_s=COLD_START_S),
    f"cold start {COLD_START_S:.0f} s, even lengths": Condition(cold_start_s=COLD_START_S, spread=EVEN_SPREAD),
}

_VARIANTS: Mapping[str, PlannerConfig] = {
    "distrs": PAPER,
    "treadle": OURS,
    "treadle without progress": replace(OURS, progress=False),
    "treadle with window 1": replace(OURS, window=1),
    "treadle without trade": replace(OURS, trade=False),
    "treadle without looking ahead": replace(OURS, look_ahead_s=math.inf),
    "treadle without reviews": replace(OURS, look_ahead_s=math.inf, review_s=math.inf),
    "treadle without the hint": replace(OURS, hints=False),
}
ABLATIONS: tuple[tuple[str, str], ...] = tuple(
    (condition, variant)
    for condition, variants in zip(
        CONDITIONS,
        (
            [name for name in _VARIANTS if not name.endswith("the hint")],
            ["distrs", "treadle", "treadle without progress"],
            ["distrs", "treadle", "treadle without the hint"],
            ["distrs", "treadle", "treadle without the hint"],
        ),
        strict=True,
    )
    for variant in variants
)
"""(condition, variant) of each run."""


def variant(name: str, trace: RewardTrace, seed: int) -> PlannerPolicy:
    """Return a policy by its name in `ABLATIONS`."""
    return PlannerPolicy(name, trace, _VARIANTS[name], seed)
