"""Bodies of the trajectory routes (msgspec: they are as hot as those of actions)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shared.api.elasticity import Duration, Name, Scaling, Units
from shared.api.requests import Closed, RequestId
from shared.messages.environments import EnvironmentSpec

Group = Annotated[str, msgspec.Meta(max_length=200)]
TrajectoryState = Literal["open", "closed", "expired", "lost"]
"""`open`, or how it ended: by its trainer's word, by a lifetime of its own, or with its environment (our failure)."""


def _no_params() -> msgspec.Raw:
    return msgspec.Raw(b"{}")


class TrajectoryRequest(Closed, frozen=True, kw_only=True):
    """Opens a trajectory. Nothing is made before its first action."""

    environment: EnvironmentSpec = EnvironmentSpec()
    """What it lives in."""
    task: Name | None = None
    """The RL job it belongs to, for people."""
    batch: Name | msgspec.UnsetType = msgspec.UNSET
    """The batch whose page counts the actions of this trajectory and how they failed. Unset is not encoded, so the
    digest of a request without it is the same in every version."""
    group: Group = ""
    """Your own name for those that start alike (GRPO)."""
    request_id: RequestId | None = None
    """Your own id: opening again with it and the same body is harmless and returns the same trajectory."""
    node_class: Name = "default"
    """Where it lives."""


class TrajectoryAction(Closed, frozen=True, kw_only=True):
    """One action in a trajectory's environment. Actions of one trajectory run one at a time, in the order they came."""

    kind: str
    """env.exec, env.bash, env.read, env.write, env.upload, env.download, env.list, env.close_session."""
    params: msgspec.Raw = msgspec.field(default_factory=_no_params)
    request_id: RequestId | None = None
    """Your own id, unique in the trajectory: sending again with it is harmless and returns the first answer."""
    units: Units | None = None
    """Resource -> units, or [fewest, most], or of cores {"any_of": [...]}; cores it has while it acts, and no longer.
    More than the fewest are granted where `elasticity` and a duration are known. Default: one core."""
    elasticity: Scaling = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}."""
    duration_s: Duration | None = None
    """T, seconds on one unit. Default: as the history of its kind tells, once there is one."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    """Execution limit; neither queueing counts nor making the environment. What meets it is ended; the environment goes
    on."""
    budget_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0
    """Seconds after which nobody needs the answer."""
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0
    """Lower goes first among actions expected to complete at the same time."""


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory as it stands. Times are Unix seconds."""

    id: str
    state: TrajectoryState
    reason: str
    """Why it ended. While it is open: why its environment could not be made when it was last tried; else empty."""
    tenant: str
    task: str | None
    batch: str | None = None
    group: str
    request_id: str | None
    node_class: str
    node: str | None
    """Where its environment stands, or stood; null before its first action."""
    environment: dict[str, Any]
    """All of it, defaults among them."""
    opened_at: float
    active_at: float
    """When the last of its actions was submitted."""
    ended_at: float | None


class TrajectoryList(msgspec.Struct, frozen=True, kw_only=True):
    """Trajectories, newest first: by when they were opened, those that have ended by when they did."""

    trajectories: list[TrajectoryView]


TRAJECTORY_TYPES: tuple[type[Any], ...] = (TrajectoryRequest, TrajectoryAction, TrajectoryView, TrajectoryList)
"""What the OpenAPI document takes from here."""
