"""Settings of the scaling planner (`SCALING_PLANNER_*`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.policy.scaling.config import PlannerConfig
from shared.runtime.settings import ServiceSettings


class ScalingPlannerSettings(ServiceSettings):
    """One planner for the whole mesh."""

    model_config = SettingsConfigDict(env_prefix="SCALING_PLANNER_", frozen=True, use_attribute_docstrings=True)

    strictness: float = Field(default=1.0, ge=0, le=1)
    """Of the timeout-aware rule: the share of its timeouts that a queued request is taken to last. 1 is the paper's;
    0 trusts the last batches' times (docs/algorithms/scaling.md shows what each costs)."""
    window: int = Field(default=5, ge=1, le=50)
    """Complete batches of a task that count for the next, the newest most. 1 is the paper's."""
    trade: bool = True
    """Exchange units between pools after the sequential search, where that is cheaper."""
    progress: bool = True
    """Heed what trainers report of their rollouts."""
    review_s: float = Field(default=10.0, ge=1)
    """While batches are open, look again so long after the last decision."""
    ahead_s: float = Field(default=15.0, ge=1)
    """Hold what is needed within so long (and a cold start). The whole batch's need: a day."""
    surprise_s: float = Field(default=1.0, gt=0)
    """Where less is held than was planned, look so often whether requests wait that were expected later."""
    hold_s: float = Field(default=5.0, ge=0)
    """Give nothing back that was wanted so long ago, or a cold start ago, whichever is longer; 0: give back at once."""
    seed: int = 0
    """Of what is drawn from histories."""
    floors: dict[str, int] = {}
    """Pool -> fewest units, whether a batch is open or not. Default 0: what comes outside batches is added by the
    dispatcher, which sees it; the planner cannot."""
    ceilings: dict[str, int] = {}
    """Pool -> most units. Default: all its nodes have."""
    node_lost_s: float = Field(default=10.0, gt=0)
    """A node silent for so long no longer counts for its pool's ceiling; the leader waits as long."""
    keep_history_s: float = Field(default=30 * 86_400.0, gt=0)
    """Batches older than this are deleted. A month to look back; the planner needs `window` batches a task."""
    keep_plans_s: float = Field(default=7 * 86_400.0, gt=0)
    """Decisions older than this are deleted; a busy pool makes some six a minute."""
    lease_s: float = Field(default=10.0, gt=0)
    """Of several planners one plans; so long after its last sign of life another may, and until then pools follow what
    waits (zero queue)."""
    stuck_s: float = Field(default=8.0, gt=0)
    """A turn that lasts longer (Postgres is away) lets the lease lapse, so that nobody waits for targets meanwhile."""
    stimulus_logs: Path | None = None
    """Folder for stimulus logs: all the planner is told and answers, for `treadle replay planner`. None: not kept."""
    stimulus_log_bytes: int = Field(default=256 * 2**20, gt=0)
    """A log ends when it is so large."""
    housekeeping_s: float = Field(default=3600.0, gt=0)
    """How often that is done."""

    @property
    def ways(self) -> PlannerConfig:
        """How the planner plans."""
        return PlannerConfig(
            strictness=self.strictness,
            window=self.window,
            trade=self.trade,
            progress=self.progress,
            review_s=self.review_s,
            ahead_s=self.ahead_s,
            surprise_s=self.surprise_s,
            hold_s=self.hold_s,
        )
