"""Settings of the scaling planner (`SCALING_PLANNER_*`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.policy.scaling.config import PlannerConfig
from shared.runtime.settings import ServiceSettings


class ScalingPlannerSettings(ServiceSettings):
    """Settings of the one planner of the mesh."""

    model_config = SettingsConfigDict(env_prefix="SCALING_PLANNER_", frozen=True, use_attribute_docstrings=True)

    strictness: float = Field(default=1.0, ge=0, le=1)
    """Strictness of the timeout-aware rule: the share of its timeouts that a queued request is expected to last. 1 is
    the paper's; 0 trusts the last batches' times (docs/algorithms/scaling.md shows what each costs)."""
    window: int = Field(default=5, ge=1, le=50)
    """Complete batches of a task that count for the next, the newest most. 1 is the paper's."""
    trade: bool = True
    """Exchange units between pools after the sequential search, if that is cheaper."""
    progress: bool = True
    """Use the progress that trainers report of their rollouts."""
    review_s: float = Field(default=10.0, ge=1)
    """Seconds from a decision to the next review while batches are open."""
    look_ahead_s: float = Field(default=15.0, ge=1)
    """Look-ahead: hold units needed within this time (plus a cold start). For the whole batch's need: a day."""
    surprise_s: float = Field(default=1.0, gt=0)
    """If less is held than planned: interval of checks for requests that wait and were expected later."""
    stabilization_s: float = Field(default=5.0, ge=0)
    """Release no units that were needed within this time or a cold start, whichever is longer; 0: release at once."""
    seed: int = 0
    """Seed of random draws from histories."""
    floors: dict[str, int] = {}
    """Pool -> fewest units, whether a batch is open or not. Default 0: the dispatcher adds units for work outside
    batches, which the planner cannot see."""
    ceilings: dict[str, int] = {}
    """Pool -> most units. Default: all units of its nodes."""
    node_lost_s: float = Field(default=10.0, gt=0)
    """Seconds of silence after which a node no longer counts for its pool's ceiling; the leader uses the same
    default."""
    keep_history_s: float = Field(default=30 * 86_400.0, gt=0)
    """Seconds after which batches are deleted. A month for users; the planner itself needs `window` batches of each
    task."""
    keep_plans_s: float = Field(default=7 * 86_400.0, gt=0)
    """Seconds after which decisions are deleted; a busy pool makes some six a minute."""
    lease_s: float = Field(default=10.0, gt=0)
    """Lease of the active planner. After its expiry another may plan; while none does, pools follow the waiting work
    (zero queue)."""
    stuck_s: float = Field(default=8.0, gt=0)
    """Most seconds of a turn. After a longer one (Postgres is away) the lease expires, so that no work waits for
    targets."""
    stimulus_logs: Path | None = None
    """Folder for stimulus logs: all stimuli and commands of the planner, for `treadle replay planner`. None: no
    logs."""
    stimulus_log_bytes: int = Field(default=256 * 2**20, gt=0)
    """Most bytes of a log; then it ends."""
    housekeeping_s: float = Field(default=3600.0, gt=0)
    """Interval of these deletions."""

    @property
    def planner_config(self) -> PlannerConfig:
        """Configuration of the planner."""
        return PlannerConfig(
            strictness=self.strictness,
            window=self.window,
            trade=self.trade,
            progress=self.progress,
            review_s=self.review_s,
            look_ahead_s=self.look_ahead_s,
            surprise_s=self.surprise_s,
            stabilization_s=self.stabilization_s,
        )
