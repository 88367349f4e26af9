"""Values of scheduling (ARL-Tangram §4.1, DistRS §5.1): frozen, without behaviour.

Those that each action has are structs: a frozen dataclass with ten fields takes 2 us to make, and 5 us to copy with a
change; a struct takes 0.2 us for either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from shared.policy.model.elasticity import Elasticity
from shared.policy.model.quotas import NO_QUOTAS, Amounts, QuotaHold, Rate, Settled

State = Literal["queued", "granted", "running", "parked", "resuming", "cancelling", "finished"]
"""State of an action at the leader. (`submitted` comes before: in the journal and not yet read.)

`parked`: its attempt is frozen and waits for something outside. `resuming`: it waits in a queue for the units that it
needs to continue."""

TRANSITIONS: Mapping[State, frozenset[State]] = {
    "queued": frozenset({"granted", "finished"}),
    "granted": frozenset({"running", "queued", "cancelling", "finished"}),
    "running": frozenset({"queued", "parked", "cancelling", "finished"}),
    "parked": frozenset({"resuming", "queued", "cancelling", "finished"}),
    "resuming": frozenset({"running", "parked", "queued", "cancelling", "finished"}),
    "cancelling": frozenset({"finished"}),
    "finished": frozenset(),
}
"""Table of all transitions. `granted -> queued` is the next stage, or another attempt after a loss."""

EndedAs = Literal[
    "ok",
    "timeout",
    "cancelled",
    "expired",
    "refused",
    "sandbox-lost",
    "node-lost",
    "unknown-outcome",
    "environment-lost",
    "upstream-failed",
]
"""End of an action, as answered. Only `ok` and `timeout` are verdicts; the others are never scored."""

TrajectoryEnd = Literal["closed", "expired", "lost"]
"""End of a trajectory: closed by its trainer; expired; or lost with its environment, an infrastructure failure."""

INFRASTRUCTURE_FAILURES: frozenset[EndedAs] = frozenset(
    {"expired", "refused", "sandbox-lost", "node-lost", "unknown-outcome", "environment-lost", "upstream-failed"}
)
"""Ends that say nothing about the sample: a trainer masks them out."""


class Work(msgspec.Struct, frozen=True):
    """One stage of an action, as scheduling needs it."""

    name: str
    kind: str
    pool: str
    """`<resource>@<node class>`; the resource is the one whose units the pool counts."""
    units: Mapping[str, int]
    """Resource -> the fewest units it takes while it runs; all or nothing."""
    timeout_s: float
    repeatable: bool = True
    amounts: tuple[int, ...] = ()
    """Amounts of the pool's resource, the key elasticity resource, that it may be granted (ARL-Tangram §4.1):
    ascending, the one of `units` first. Empty: only that one."""
    elasticity: Elasticity | None = None
    """Effect of those amounts on its duration; None: unknown, so it is granted the fewest."""
    duration_s: float | None = None
    """Duration on one unit as the trainer declares it; None: learned from its kind's history, if there is one."""
    quotas: Amounts = msgspec.field(default_factory=lambda: NO_QUOTAS)
    """Quota -> amount that it takes (`resources.quotas`), granted together with the units."""
    service: str = ""
    """Model service that it uses; empty: none."""


@dataclass(frozen=True, slots=True)
class EnvironmentNeed:
    """Environment that a trajectory's actions need: on one node, from its first action to its end (§5.2)."""

    trajectory: str
    kind: str
    """Kind that a node must offer to create it: `runtime.local` or `runtime.docker`."""
    units: Mapping[str, int]
    """Resource -> units that the environment holds of its node: until its end (memory), or until it has been created.
    The resource declares which (`ResourceSpec.held_by`)."""
    image: str = ""
    """Its image, as container engines list it; empty: no image that a node would have to pull."""

    def begun_by(self, units: Mapping[str, int]) -> dict[str, int]:
        """Units that a node must have free for an action with these units that begins it."""
        return {**units, **{name: units.get(name, 0) + count for name, count in self.units.items()}}


class Request(msgspec.Struct, frozen=True):
    """An action as it arrives: a reward request with its stages, or a plain action with one."""

    id: str
    tenant: str
    task: str
    batch: str
    """Empty outside a batch."""
    arrival: tuple[int, int]
    """Journal id: milliseconds and sequence on Valkey's clock."""
    stages: tuple[Work, ...]
    deadline_s: float
    """Absolute time after which the answer is not needed."""
    start_by_s: float | None = None
    """Absolute; reject at once if the start is predicted later than this."""
    priority: float = 0.0
    """Its own priority; lower goes first."""
    need: EnvironmentNeed | None = None
    """Environment it needs, for an action of a trajectory."""
    trajectory_priority: float = 0.0
    """Newest priority of its trajectory."""
    until_granted: bool = False
    """The deadline is one for the grant: a granted action is not cancelled by it, and one that cannot meet it is
    answered at once. A granted action is never queued again, because its work is not repeatable."""

    @property
    def rank(self) -> float:
        """Its priority in the order: its own and its trajectory's together (ADR 0059)."""
        return self.priority + self.trajectory_priority


class StageAct(msgspec.Struct, frozen=True):
    """Action completion time of one stage, seconds."""

    name: str
    queue_s: float
    execution_s: float
    node: str
    attempts: int
    units: int
    """Units of the pool's resource."""
    usage: Mapping[str, float] = {}
    """Usage of all its attempts, as far as their nodes have reported (`shared.policy.model.results.USAGE`)."""
    parked_s: float = 0.0
    """Time for which it was parked and waited for something outside. Waiting for units to continue is queueing."""
    restore_s: float = 0.0
    """Time for which its attempts waited until their model service was resident, as far as their nodes have reported.
    """

    @property
    def unqueued_s(self) -> float:
        """All of its time without queueing."""
        return self.execution_s + self.parked_s + self.restore_s

    @property
    def passed_s(self) -> float:
        """All of its time."""
        return self.queue_s + self.unqueued_s


class FailedCalls(NamedTuple):
    """Attempts of one stage at an external service that have failed. Pushback and missing credit are no failures."""

    failed: int = 0
    silent: int = 0
    """Those of them that the service has not answered."""


class Grant(NamedTuple):
    """Command: send this stage to this node. (A tuple, because more of them are created than of all other values.)"""

    action: str
    node: str
    attempt: int
    stage: int
    units: Mapping[str, int]
    budget_s: float
    begins: bool = False
    """This grant begins the trajectory's environment. The trajectory is placed there until its node reports
    otherwise."""
    hold: QuotaHold | None = None
    """Amounts that it takes from quotas."""
    rates: tuple[tuple[str, Rate], ...] = ()
    """(Quota, rate) of which the amounts are taken, for the store."""
    numbers: tuple[int, ...] = ()
    """Numbers of its units of the pool's resource, if they have numbers: its GPUs."""
    failed_calls: FailedCalls | None = None
    """As its node has reported them; None: not known to this leader."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Command: the node must stop this attempt."""

    action: str
    node: str
    attempt: int
    recall: bool = False
    """The action itself is not cancelled: the node returns it as lost, and only if it has not begun."""


@dataclass(frozen=True, slots=True)
class Park:
    """Command: the node must freeze the environment of this attempt, free its units, and report it parked."""

    action: str
    node: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Command: the node must assign these units to its parked attempt again, and thaw the environment."""

    action: str
    node: str
    attempt: int
    units: Mapping[str, int]
    budget_s: float


class Advance(msgspec.Struct, frozen=True):
    """Command: the request's next stage begins; store the measurements so far."""

    action: str
    stage: int
    acts: tuple[StageAct, ...]
    """Acts of the stages before it."""
    settled: tuple[Settled, ...] = ()
    """Holds of its ended attempts."""


class AnswerAction(msgspec.Struct, frozen=True):
    """Command: answer the action and remove it."""

    action: str
    ended: EndedAs
    reason: str
    acts: tuple[StageAct, ...]
    """Acts of the stages that have a verdict."""
    queue_s: float = 0.0
    """Queueing in a stage without a verdict."""
    execution_s: float = 0.0
    """Execution in a stage without a verdict, as far as known: an attempt was cut short."""
    usage: Mapping[str, float] = {}
    """Usage of a stage without a verdict, as far as known."""
    parked_s: float = 0.0
    """Time for which it was parked in a stage without a verdict."""
    restore_s: float = 0.0
    """Time for which it waited for its model service in a stage without a verdict, as far as known."""
    retry_in_s: float = 0.0
    """Seconds after which its model service is expected to be resident, if its deadline came during a restore."""
    settled: tuple[Settled, ...] = ()
    """Holds of its ended attempts."""


@dataclass(frozen=True, slots=True)
class ChangeHolds:
    """Command: store changes of holds that neither a grant nor an answer nor an advance carries."""

    changes: tuple[QuotaHold | Settled, ...]


@dataclass(frozen=True, slots=True)
class AskInventory:
    """Command: ask the node for its inventory."""

    node: str


@dataclass(frozen=True, slots=True)
class SetShare:
    """Command: the node must own this many units of a resource."""

    node: str
    resource: str
    units: int


@dataclass(frozen=True, slots=True)
class CloseEnvironment:
    """Command: the node must end this trajectory's environment and report its end."""

    node: str
    trajectory: str


@dataclass(frozen=True, slots=True)
class ForgetTrajectory:
    """Command: an environment has ended, or was not created. Remove its placement and store how it ended."""

    trajectory: str
    ended: TrajectoryEnd | Literal["unmade"]
    """`unmade`: the attempt to create it has failed. The trajectory is still open and may begin again on any node."""
    reason: str


@dataclass(frozen=True, slots=True)
class PullImage:
    """Command: environments of this image are expected on the node, which lacks it."""

    node: str
    image: str


Command = (
    Grant
    | Revoke
    | Park
    | Resume
    | Advance
    | AnswerAction
    | ChangeHolds
    | AskInventory
    | SetShare
    | CloseEnvironment
    | ForgetTrajectory
    | PullImage
)
