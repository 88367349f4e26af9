"""Bodies of the trajectory routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shared.api.requests import Closed, RequestId
from shared.kinds.formulation import Duration, Name, QuotaAmounts, Scaling, Units
from shared.messages.environments import EnvironmentSpec
from shared.runtime.patterns import FIELD, whole

Sampling = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=whole(FIELD))], Any],
    msgspec.Meta(max_length=32),
]
Group = Annotated[str, msgspec.Meta(max_length=200)]
Priority = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
TrajectoryState = Literal["open", "closed", "expired", "lost"]
"""`open`, or its end: `closed` by its trainer, `expired` at the end of its lifetime, `lost` with its environment (an
infrastructure failure)."""


def _no_params() -> msgspec.Raw:
    return msgspec.Raw(b"{}")


class TrajectoryRequest(Closed, frozen=True, kw_only=True):
    """Opens a trajectory. Its environment is created with its first action."""

    environment: EnvironmentSpec = EnvironmentSpec()
    """Environment of its actions."""
    task: Name | None = None
    """RL job of the trajectory, for people."""
    batch: Name | msgspec.UnsetType = msgspec.UNSET
    """Batch whose status counts the actions of this trajectory and their failures. Unset is not encoded, so the digest
    of a request without it is the same in every version."""
    group: Group = ""
    """Your own name for trajectories with the same start (GRPO)."""
    request_id: RequestId | None = None
    """Your own id. A repeat with the same id and body returns the same trajectory."""
    node_class: Name = "default"
    """Class of the nodes that may have its environment."""
    sampling: Sampling | msgspec.UnsetType = msgspec.UNSET
    """Fields that a call of its model gets where it has none: {"temperature": 1.0, "max_tokens": 2048}. Agents often
    send neither."""
    record: Literal["tokens"] | msgspec.UnsetType = msgspec.UNSET
    """`tokens`: the ids and log-probabilities of its model calls are recorded, for `GET
    /v1/trajectories/{trajectory}/tokens`. A call's answer ends when its record is durable."""


class TrajectoryChange(Closed, frozen=True, kw_only=True):
    """Changes an open trajectory."""

    priority: Priority
    """Seconds by which its unanswered and later actions go later in the order of your tenant, negative for earlier. An
    action that runs is not interrupted."""


class TrajectoryAction(Closed, frozen=True, kw_only=True):
    """One action in a trajectory's environment. Actions of one trajectory run one at a time, in order of arrival."""

    kind: str
    """env.exec, env.bash, env.read, env.write, env.upload, env.download, env.list, env.close_session."""
    params: msgspec.Raw = msgspec.field(default_factory=_no_params)
    request_id: RequestId | None = None
    """Your own id, unique in the trajectory. A repeat with the same id returns the first answer."""
    units: Units | None = None
    """Resource -> units, [fewest, most], or for cores {"any_of": [...]}. The action holds cores only while it executes.
    More than the fewest are granted if `elasticity` and a duration are known. Default: one core."""
    elasticity: Scaling = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}."""
    duration_s: Duration | None = None
    """T, seconds on one unit. Default: learned from earlier actions of this kind."""
    quotas: QuotaAmounts = {}
    """Quota (`PUT /v1/quotas/{quota}`) -> amount that it takes, together with its units or not at all. "learned": what
    earlier actions of the same tenant and kind have used, as far as known."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    """Execution limit. Queueing and the creation of the environment do not count. At the limit the action is ended, and
    the environment continues."""
    budget_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0
    """Seconds after which the answer is not needed."""
    priority: Priority = 0.0
    """Seconds by which it goes later in the order, negative for earlier. That of its trajectory is added."""


class ModelAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Access to the model of one trajectory, for an agent."""

    base_url: str
    """OpenAI's base URL. Anthropic's is without `/v1`."""
    api_key: str
    """Key of this address alone. It is refused after the trajectory has ended."""


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a trajectory. Times are Unix seconds."""

    id: str
    state: TrajectoryState
    reason: str
    """Reason of its end. While it is open: why the last attempt to create its environment failed; else empty."""
    tenant: str
    task: str | None
    batch: str | None = None
    group: str
    request_id: str | None
    node_class: str
    node: str | None
    """Node of its environment; null before its first action."""
    environment: dict[str, Any]
    """The whole specification, including defaults."""
    opened_at: float
    active_at: float
    """Time at which its last action was submitted."""
    ended_at: float | None
    priority: float = 0.0
    """Newest priority; 0 until it is changed."""
    record: Literal["tokens"] | None = None
    """What is recorded of its model calls."""
    model: ModelAccess | None = None
    """Access to its model. Only in the answer that opens it, and null if no trajectory router runs."""


class TrajectoryList(msgspec.Struct, frozen=True, kw_only=True):
    """Trajectories, newest first: open ones by their opening, ended ones by their end."""

    trajectories: list[TrajectoryView]


TRAJECTORY_TYPES: tuple[type[Any], ...] = (
    TrajectoryRequest,
    TrajectoryChange,
    TrajectoryAction,
    ModelAccess,
    TrajectoryView,
    TrajectoryList,
)
"""Types of the OpenAPI document."""
