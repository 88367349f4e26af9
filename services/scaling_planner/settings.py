"""Settings of the scaling planner (`SCALING_PLANNER_*`)."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class ScalingPlannerSettings(ServiceSettings):
    """One planner for the whole mesh."""

    model_config = SettingsConfigDict(env_prefix="SCALING_PLANNER_", frozen=True, use_attribute_docstrings=True)

    strictness: float = Field(default=1.0, ge=0, le=1)
    """Of the timeout-aware rule: the share of its timeouts that a queued request is taken to last. 1 is the paper's;
    0 trusts the last batch's times (docs/algorithms/scaling.md shows what each costs)."""
    floors: dict[str, int] = {}
    """Pool -> fewest units, whether a batch is open or not. Default 0: what comes outside batches is added by the
    dispatcher, which sees it; the planner cannot."""
    ceilings: dict[str, int] = {}
    """Pool -> most units. Default: all its nodes have."""
    node_lost_s: float = Field(default=10.0, gt=0)
    """A node silent for so long no longer counts for its pool's ceiling; the leader waits as long."""
    keep_history_s: float = Field(default=30 * 86_400.0, gt=0)
    """Batches and plans older than this are deleted. A month to look back; the planner needs one batch a task."""
    housekeeping_s: float = Field(default=3600.0, gt=0)
    """How often that is done."""
