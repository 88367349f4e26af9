"""The values scheduling speaks of (ARL-Tangram §4.1, DistRS §5.1): frozen, without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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

OURS: frozenset[EndedAs] = frozenset(
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
    """Resource -> units it takes while it runs; all or nothing."""
    timeout_s: float
    repeatable: bool = True


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


@dataclass(frozen=True, slots=True)
class Grant:
    """Command: send this stage to this node."""

    action: str
    node: str
    attempt: int
    stage: int
    units: Mapping[str, int]
    budget_s: float


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


Command = Grant | Revoke | Advance | Answer | AskInventory | SetShare
