"""The values scheduling speaks of (ARL-Tangram §4.1, DistRS §5.1): frozen, without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shared.policy.model.elasticity import Elasticity

State = Literal["queued", "granted", "running", "cancelling", "finished"]
"""Of an action, as the leader sees it. (`submitted` lies before: in the journal and not yet read.)"""

TRANSITIONS: Mapping[State, frozenset[State]] = {
    "queued": frozenset({"granted", "finished"}),
    "granted": frozenset({"running", "queued", "cancelling", "finished"}),
    "running": frozenset({"queued", "cancelling", "finished"}),
    "cancelling": frozenset({"finished"}),
    "finished": frozenset(),
}
"""The one table of transitions. `granted -> queued` is the next stage, or another attempt after a loss."""

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
]
"""How an action was answered. Only `ok` and `timeout` are verdicts; the others are never scored."""

TrajectoryEnd = Literal["closed", "expired", "lost"]
"""How a trajectory ended: by its trainer's word; by a lifetime of its own; or with its environment, which is ours."""

INFRASTRUCTURE_FAILURES: frozenset[EndedAs] = frozenset(
    {"expired", "refused", "sandbox-lost", "node-lost", "unknown-outcome", "environment-lost"}
)
"""Endings that say nothing about the work: a trainer masks them out."""


@dataclass(frozen=True, slots=True)
class Work:
    """One stage of an action, as far as scheduling cares."""

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
    ascending, the one of `units` first. Empty: that one alone."""
    elasticity: Elasticity | None = None
    """How those amounts shorten it; None: not known, so it is granted the fewest."""
    duration_s: float | None = None
    """On one unit, as the trainer knows it; None: as its kind's history tells, if there is one."""


STARTS = "starts"
"""The resource that an environment holds while it is made, apart from cores: so many begin on a node at once."""


@dataclass(frozen=True, slots=True)
class EnvironmentNeed:
    """The environment a trajectory's actions need: one of one node, from its first action to its end (§5.2)."""

    trajectory: str
    kind: str
    """What a node must offer to make it: one of its kinds, `runtime.local` or `runtime.docker`."""
    units: Mapping[str, int]
    """Resource -> what the environment holds of its node for its whole life: memory, in MB."""
    image: str = ""
    """What it is made of, as container engines list it; empty: nothing that a node would have to pull."""
    starts: int = 0
    """Units of `STARTS` that it holds until it stands."""

    @property
    def held(self) -> dict[str, int]:
        """What it holds of its node while it is made."""
        return {**self.units, STARTS: self.starts} if self.starts else dict(self.units)

    def begun_by(self, units: Mapping[str, int]) -> dict[str, int]:
        """What a node must have free for an action of these units that begins it."""
        return {**units, **{name: units.get(name, 0) + count for name, count in self.held.items()}}


@dataclass(frozen=True, slots=True)
class Request:
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
    """Absolute: nobody cares for the answer after it."""
    start_by_s: float | None = None
    """Absolute: refuse at once when the start is predicted later than this."""
    priority: float = 0.0
    need: EnvironmentNeed | None = None
    """Of an action of a trajectory: where it must run."""


@dataclass(frozen=True, slots=True)
class StageAct:
    """Action completion time of one stage, seconds."""

    name: str
    queue_s: float
    execution_s: float
    node: str
    attempts: int
    units: int
    """Of the pool's resource."""


class Grant(NamedTuple):
    """Command: send this stage to this node. (A tuple: more of them are made than of all other values.)"""

    action: str
    node: str
    attempt: int
    stage: int
    units: Mapping[str, int]
    budget_s: float
    begins: bool = False
    """The trajectory's environment begins with it: until its node says otherwise, that trajectory lives there."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Command: the node shall stop this attempt."""

    action: str
    node: str
    attempt: int
    recall: bool = False
    """Nobody has asked to stop the action: the node gives it back as lost, and only if it has not begun."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Command: the request's next stage begins; keep what was measured."""

    action: str
    stage: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Command: answer the action and forget it."""

    action: str
    ended: EndedAs
    reason: str
    acts: tuple[StageAct, ...]
    """Of the stages that have a verdict."""
    queue_s: float = 0.0
    """Queueing in a stage that has none."""
    execution_s: float = 0.0
    """Execution in a stage that has none, as far as it is known: an attempt was cut short."""


@dataclass(frozen=True, slots=True)
class AskInventory:
    """Command: ask the node what it holds."""

    node: str


@dataclass(frozen=True, slots=True)
class SetShare:
    """Command: the node shall own so many units of a resource."""

    node: str
    resource: str
    units: int


@dataclass(frozen=True, slots=True)
class CloseEnvironment:
    """Command: the node shall end this trajectory's environment and say when it has."""

    node: str
    trajectory: str


@dataclass(frozen=True, slots=True)
class ForgetTrajectory:
    """Command: its environment is no more, or was not made after all. Forget its placement, write down how it ended."""

    trajectory: str
    ended: TrajectoryEnd | Literal["unmade"]
    """`unmade`: the attempt that was to make it has failed; it is open as before and may begin anew, anywhere."""
    reason: str


@dataclass(frozen=True, slots=True)
class PullImage:
    """Command: environments of this image are expected on the node, which lacks it."""

    node: str
    image: str


Command = Grant | Revoke | Advance | Answer | AskInventory | SetShare | CloseEnvironment | ForgetTrajectory | PullImage
