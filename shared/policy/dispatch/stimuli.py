"""Stimuli of the dispatcher: frozen values that can be logged, so that a run can be replayed.

Times are absolute seconds of one monotonic scale, the one of the journal's ids. Mappings and tuples in a stimulus must
not change afterwards. The order of those that restore a former leader: `QuotaEvent`, `FirstArrivalRestored`,
`TrajectoryRestored`, `PlacementRestored`, `RequestsSubmitted`, `PriorityChanged`, `ActionRestored`, then the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shared.policy.dispatch.local_stimuli import ActionWithdrawn
from shared.policy.dispatch.quota_stimuli import QuotaEvent
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.model.formulation import Request, StageAct, TrajectoryEnd
from shared.policy.model.reports import Ended, HeldGrants

# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestsSubmitted:
    """New entries of the journal, in its order. Ids already known are skipped (the journal is read again).

    A request whose predicted start is after its `start_by_s` is rejected, unless it can start at once.
    """

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class ActionRestored:
    """An unanswered action of a former leader, from the store. Before any node is ready; unknown actions are ignored.

    It waits for the outcome, inventory or loss of the node of its last grant, and is granted nowhere before.
    """

    action: str
    stage: int
    attempt: int
    acts: tuple[StageAct, ...]
    node: str
    """Node of its last grant; empty if it has none."""
    wanted: Literal["", "parked", "resumed"] = ""
    """Newest unfulfilled request about that grant; empty: none."""


@dataclass(frozen=True, slots=True)
class ActionCancelled:
    """An action is cancelled: answered if it is queued, else revoked, and answered when the node confirms."""

    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchCancelled:
    """The unanswered actions of a batch must be cancelled. None of them is granted from now on."""

    batch: str
    reason: str


# ---- attempts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """An attempt has started to execute."""

    action: str
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptsEnded:
    """Attempts have ended, in the order of their reports."""

    ends: tuple[Ended, ...]


@dataclass(frozen=True, slots=True)
class ParkRequested:
    """A running action in an environment waits for something outside: its node must park it (`parking`)."""

    action: str


@dataclass(frozen=True, slots=True)
class AttemptParked:
    """A node has frozen the environment of an attempt, which holds no units from then on."""

    action: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """A parked action needs its units again. It may be repeated, and may come before `AttemptParked`."""

    action: str


# ---- trajectories ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """A trajectory has another priority. It is added to that of each of its unanswered actions; lower goes first.

    It applies while an action waits, and when it is queued again. Later submissions carry it. A new leader needs it.
    """

    trajectory: str
    priority: float


@dataclass(frozen=True, slots=True)
class TrajectoryClosed:
    """A trainer has closed a trajectory: its unanswered actions are cancelled and its environment ends."""

    trajectory: str


@dataclass(frozen=True, slots=True)
class TrajectoryRestored:
    """A trajectory that ended under a former leader, from the store."""

    trajectory: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlacementRestored:
    """A placement of a former leader, from the store. The inventory or the loss of its node decides about it."""

    trajectory: str
    node: str
    units: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CreationReported:
    """A node reports a new environment whose first action still executes: another may start."""

    node: str
    incarnation: str
    trajectory: str


@dataclass(frozen=True, slots=True)
class EnvironmentEndReported:
    """A node reports the end of an environment, after the outcomes of its actions."""

    node: str
    incarnation: str
    trajectory: str
    ended: TrajectoryEnd
    reason: str


@dataclass(frozen=True, slots=True)
class ImagesExpected:
    """Hint: one environment of each image is expected. Missing images are pulled to its predicted node."""

    images: tuple[str, ...]
    """Names as container engines list them."""
    node_class: str
    """Empty: any class."""
    kind: str
    """Capability that a node needs to make such an environment."""
    units: Mapping[str, int]
    """Units that each environment will hold of its node."""


# ---- nodes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """Hello of a node. It gets no grants before its inventory is read. A repeated one may offer more kinds."""

    node: str
    incarnation: str
    node_class: str
    capacity: Mapping[str, int]
    kinds: frozenset[str]
    prefetches: frozenset[str] = frozenset()
    """Resources with a node queue."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """Heartbeat of a node. Ignored if its incarnation is unknown (`Dispatcher.has_node`)."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The incarnation of a node has ended: what it held is lost."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class SilenceIgnored:
    """No node could send anything for a while, so that all present nodes count as seen now."""


@dataclass(frozen=True, slots=True)
class InventoryReported:
    """A node's inventory. Held and unanswered: adopted. Not wanted: revoked. Granted but not held: lost."""

    node: str
    incarnation: str
    held: HeldGrants
    environments: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Trajectory -> units that its environment holds there; unknown ones are closed."""


@dataclass(frozen=True, slots=True)
class ImagesReported:
    """Changes of a node's images since its last report. Postponed actions that need an added one are queued again."""

    node: str
    incarnation: str
    added: tuple[str, ...]
    removed: tuple[str, ...] = ()


# ---- planner and time ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetReceived:
    """The planner's target for a pool. `chunk`: units that its work needs together on one node."""

    pool: str
    units: int
    chunk: int = 1


@dataclass(frozen=True, slots=True)
class PlannerChecked:
    """A planner is alive, or not: targets stay, and a zero-queue rule adds to them. Before the first one, it is."""

    alive: bool


@dataclass(frozen=True, slots=True)
class WeightsReceived:
    """Weights of all tenants that have one; the others have weight 1. Grants from now on are charged by them."""

    weights: Mapping[str, float]
    """Tenant -> weight > 0."""


@dataclass(frozen=True, slots=True)
class EstimateReceived:
    """The planner's new estimate of a batch's T: the batch's queued requests move in the order."""

    batch: str
    at_s: float


@dataclass(frozen=True, slots=True)
class FirstArrivalRestored:
    """First arrival of a batch that began under a former leader, from the store. Ignored if the batch is known."""

    batch: str
    first_s: float
    stage_timeouts_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BatchEndReported:
    """A batch has ended: its estimate is removed."""

    batch: str


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """What earlier turns have left of cancellations and deadlines goes on, in part. A tick begins a turn, too."""


@dataclass(frozen=True, slots=True)
class TickPassed:
    """Time has passed: deadlines, silent nodes, overdue grants and linger windows are due. A few times a second."""


Restored = ActionRestored | FirstArrivalRestored | PlacementRestored | QuotaEvent | TrajectoryRestored | WeightsReceived
"""State that is read from the store: at a takeover, and weights also when they have changed."""

Stimulus = (
    Restored
    | RequestsSubmitted
    | ActionCancelled
    | ActionWithdrawn
    | BatchCancelled
    | PriorityChanged
    | AttemptStarted
    | AttemptsEnded
    | ParkRequested
    | AttemptParked
    | ResumeRequested
    | TrajectoryClosed
    | CreationReported
    | EnvironmentEndReported
    | ImagesExpected
    | NodeJoined
    | NodeSeen
    | NodeLost
    | SilenceIgnored
    | InventoryReported
    | ImagesReported
    | ServicesReported
    | TargetReceived
    | PlannerChecked
    | EstimateReceived
    | BatchEndReported
    | TurnStarted
    | TickPassed
)
