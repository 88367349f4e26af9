"""What trajectories do: think, act, think, act ... until the reward (ARL-Tangram §2.1, Figure 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.policy.model.elasticity import Elasticity

TOOL: Final = "tool"
REWARD: Final = "reward"
"""Kinds of the generated steps; a trace names its own."""


@dataclass(frozen=True, slots=True)
class TrajectoryStep:
    """The model generates for a while, then one action runs in the trajectory's environment."""

    think_s: float
    """Seconds of generation before the action."""
    kind: str
    work_s: float
    """Seconds that the action takes on one core, when nothing disturbs it."""
    least: int = 1
    """Fewest cores it takes."""
    most: int = 1
    """Most cores it can use; more than the fewest only with an elasticity."""
    elasticity: Elasticity | None = None
    """How more cores shorten it; None: not at all, so a step of more than one core takes as long as on one."""
    profile_s: float | None = None
    """What its work was profiled as beforehand; None: the scheduler has to go by the history of its kind."""

    @property
    def is_elastic(self) -> bool:
        return self.elasticity is not None and self.most > self.least

    def seconds(self, cores: int) -> float:
        """What it takes on so many cores."""
        return self.work_s if self.elasticity is None else self.elasticity.duration(self.work_s, cores)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sample's way to its reward."""

    name: str
    group: str
    """Trajectories of one prompt (GRPO)."""
    steps: tuple[TrajectoryStep, ...]

    @property
    def think_s(self) -> float:
        return sum(step.think_s for step in self.steps)

    @property
    def active_share(self) -> float:
        """Of its life, when every action has one core for itself at once (§2.3); 0 of a life without length."""
        active_s = sum(step.work_s for step in self.steps)
        life_s = active_s + self.think_s
        return active_s / life_s if life_s else 0.0


Batch = tuple[Trajectory, ...]
"""Trajectories that begin together: the paper counts a batch by them (§6.3)."""
