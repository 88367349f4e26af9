"""Trajectories: think, act, think, act ... until the reward (ARL-Tangram §2.1, Figure 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.policy.model.elasticity import Elasticity

TOOL: Final = "tool"
REWARD: Final = "reward"
"""Kinds of generated steps; a trace file has its own."""


@dataclass(frozen=True, slots=True)
class TrajectoryStep:
    """One thought of the model and the action after it."""

    think_s: float
    """Seconds of generation before the action."""
    kind: str
    work_s: float
    """Seconds of the action on one core of its own."""
    least: int = 1
    """Fewest cores."""
    most: int = 1
    """Most cores; more than the fewest only with an elasticity."""
    elasticity: Elasticity | None = None
    """Speedup by more cores; None: no speedup, so a step of several cores takes as long as on one."""
    profile_s: float | None = None
    """Profiled work; None: the scheduler uses the history of the kind."""

    @property
    def is_elastic(self) -> bool:
        return self.elasticity is not None and self.most > self.least

    def seconds(self, cores: int) -> float:
        """Return the duration on this number of cores."""
        return self.work_s if self.elasticity is None else self.elasticity.duration(self.work_s, cores)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Steps of one sample, to its reward."""

    name: str
    group: str
    """Trajectories of one prompt (GRPO)."""
    steps: tuple[TrajectoryStep, ...]

    @property
    def think_s(self) -> float:
        return sum(step.think_s for step in self.steps)

    @property
    def active_share(self) -> float:
        """Share of the duration in which an action runs, if every action has one core at once (§2.3); 0 if empty."""
        active_s = sum(step.work_s for step in self.steps)
        life_s = active_s + self.think_s
        return active_s / life_s if life_s else 0.0


Batch = tuple[Trajectory, ...]
"""Trajectories that begin together: the paper counts a batch by them (§6.3)."""
