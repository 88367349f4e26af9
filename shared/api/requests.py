"""Bodies of the hot routes: reward requests, actions and their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shared.kinds.formulation import Duration, Name, QuotaAmounts, Scaling, Units
from shared.policy.model.formulation import EndedAs
from shared.runtime.patterns import TRAJECTORY, whole

RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
TrajectoryId = Annotated[str, msgspec.Meta(pattern=whole(TRAJECTORY))]


class Closed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of bodies that reject unknown fields."""


def _no_params() -> msgspec.Raw:
    return msgspec.Raw(b"{}")


class RewardRequest(Closed, frozen=True, kw_only=True):
    """Reward request: one sample, which passes through the stages of its task."""

    batch: str | None = None
    """Id of an open batch. `?batch=` is its default in a bulk call. Null: outside a batch; `task` is required then."""
    task: str | None = None
    request_id: RequestId | None = None
    """Your own id, unique in the batch. A repeat with the same id returns the first answer."""
    params: msgspec.Raw = msgspec.field(default_factory=_no_params)
    """Parameters that override those of the stages. A field goes to each stage whose kind has it."""
    stage_params: dict[str, msgspec.Raw] = {}
    """Stage name -> parameters of this stage only."""
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0
    """Requests with a lower value go first in the batch."""
    trajectory: TrajectoryId | None = None
    """Your trajectory that is graded: its trace shows the request. No effect on the request; one that is not known (any
    more) is ignored."""


class ActionRequest(Closed, frozen=True, kw_only=True):
    """One action outside any batch."""

    kind: str
    params: msgspec.Raw = msgspec.field(default_factory=_no_params)
    request_id: RequestId | None = None
    units: Units | None = None
    """Resource -> units, [fewest, most], or for the pool's resource {"any_of": [...]}. Default: one core (sleep, noop:
    one slot)."""
    elasticity: Scaling = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}. With
    m units the action takes T / (E(m) * m). Empty: more units do not help."""
    duration_s: Duration | None = None
    """T, seconds on one unit. Default: learned from earlier actions of this kind."""
    quotas: QuotaAmounts = {}
    """Quota (`PUT /v1/quotas/{quota}`) -> amount that it takes, together with its units or not at all. "learned": what
    earlier actions of the same tenant and kind have used, as far as known."""
    node_class: Name = "default"
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    """Execution limit. Queueing does not count."""
    budget_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0
    """Seconds after which the answer is not needed."""
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0
    """Seconds by which it goes later in the order, negative for earlier."""
    trajectory: TrajectoryId | None = None
    """Your trajectory that the action belongs to, such as its grading: its trace shows the action. No effect on the
    action, which is executed outside its environment; one that is not known (any more) is ignored."""


class ParkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parks a running action in an environment."""

    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """What it waits for; for people."""


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Action completion time, seconds: total = queue + execution + overhead, for every end."""

    queue_s: float
    """Waiting for units, in all stages, including lost attempts that were repeated."""
    execution_s: float
    """Execution in all stages; of a last stage that was stopped, as far as it is known."""
    overhead_s: float
    """Rest of the total; `restore_s`, and time for which an action was parked (`stages`), are part of it."""
    total_s: float
    """Time from acceptance to answer."""
    restore_s: float = 0.0
    """Waiting, after a grant, until the action's model service was resident, as far as it is known."""


class StageReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations and units of one stage of a request."""

    name: str
    queue_s: float
    execution_s: float
    node: str
    attempts: int
    units: int
    usage: dict[str, float] = {}
    """Usage of all its attempts, by name, as far as it was measured."""
    parked_s: float = 0.0
    """Seconds for which it was parked and waited for something outside. Waiting for units to continue is queueing."""
    restore_s: float = 0.0
    """Seconds for which its attempts waited, after their grants, until its model service was resident."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of an action, and its answer once it is finished."""

    id: str
    state: Literal["queued", "granted", "parked", "finished"]
    """`parked`: a caller has parked it, or its node while its model answers. It holds no cores, or returns them now,
    until it continues."""
    request_id: str | None = None
    task: str | None = None
    batch: str | None = None
    trajectory: str | None = None
    """Trajectory in whose environment it acts. Once it is finished, also one that it was only submitted for."""
    index: int | None = None
    """Position in the batch, by acceptance."""
    arrived_at: float = 0.0
    """Unix seconds, the journal's clock."""
    ended: EndedAs | None = None
    """End of the action. `ok` and `timeout` are verdicts; the other values are no statement about the sample."""
    mask: bool = False
    """True: an infrastructure failure or a cancellation. Leave the sample out instead of scoring it."""
    passed: bool | None = None
    score: float | None = None
    """Reward; absent without a verdict."""
    reason: str = ""
    """Reason of the end. While the action waits: why it is stuck, because no present node can execute it. While it is
    parked: what it waits for."""
    retry_in_s: float | None = None
    """Seconds, from the answer on, after which its model service is expected to be resident, if its deadline came while
    that was restored. Send the work again then, under another `request_id`. Absent otherwise."""
    parked_at: float = 0.0
    """Unix seconds of the request to park it, while it is parked."""
    output: msgspec.Raw | None = None
    """Report of the kind: verdicts of tests, name of an exception, end of stdout ..."""
    act: Act | None = None
    stages: list[StageReport] = []
    """Stages with a verdict."""
    usage: dict[str, float] = {}
    """Name -> amount used in all stages and attempts, as far as it was measured: `cpu_s`, `gpu_s` (seconds), `tokens`,
    `money`, or a name of the kind's own. Not measured: attempts of a lost node, stopped actions in environments."""
    cpu_s: float = 0.0
    """CPU time of the last stage with a verdict. A stopped execution is not measured."""
    peak_memory_bytes: int = 0
    evidence: Literal["separate", "in-process"] | None = None
    """Origin of the last stage's verdict. `separate`: outside the interpreter that ran the sample, which has no
    expected value. `in-process`: in the same interpreter, so a sample written to attack its grader may forge it.
    Absent if the kind forms no verdict."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rejected line of a bulk call."""

    line: int
    request_id: str | None = None
    problem: dict[str, Any]


class BulkReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Receipt of a bulk call. An accepted line is accepted even if others are rejected."""

    accepted: int
    repeated: int
    """Lines that were accepted before, with the same body."""
    rejected: list[Rejection]


HOT_TYPES: tuple[type[Any], ...] = (RewardRequest, ActionRequest, ParkRequest, Answer, BulkReceipt)
"""Types of the OpenAPI document."""
