"""From nodes to the leader: stream `outcomes`. From the leader to the other proxies: stream `answered`. Both bounded.

`Started`, `Finished` and `InventoryTaken` share one stream so that an inventory comes after every outcome that was
published before it. `Answered` is a wake-up for proxies whose callers wait: one that fell behind reads the store. It
has a stream of its own because the leader, who writes it, must not be woken by it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.messages.actions import Json
from shared.messages.base import Message, Topic
from shared.policy.model.formulation import TrajectoryEnd

ExecutionStatus = Literal["ok", "timeout", "lost", "refused", "cancelled", "environment-lost", "postponed"]
"""How one attempt ended on a node. `ok` and `timeout` are verdicts; `lost` is ours and is tried again. In a trajectory,
`environment-lost`: its environment had ended before, and the action was not executed; or the environment's lifetime
ended while the action ran, and it was executed partly. `postponed`: the environment cannot be made before `retry_in_s`,
and the action was not executed; that is no failed attempt."""

Evidence = Literal["", "separate", "in-process"]
"""Where a verdict was formed. `separate`: outside the interpreter that ran the sample. `in-process`: in the same one,
so a sample that is written against its grader may forge it. Empty: the kind forms no verdict."""

RECALLED = "recalled"
"""Reason of an attempt that was taken back before it had begun: its `lost` is nobody's failure."""


class Started(Message, frozen=True, kw_only=True, tag="started.v1"):
    """An attempt has begun to execute. Sent where it outlives the manager's next flush; short ones only finish."""

    action: str
    node: str
    epoch: int
    attempt: int


class Finished(Message, frozen=True, kw_only=True, tag="finished.v1"):
    """An attempt has ended and its units are free."""

    action: str
    node: str
    incarnation: str
    epoch: int
    attempt: int
    stage: int
    status: ExecutionStatus
    passed: bool | None = None
    score: float | None = None
    output: Json = b"{}"
    reason: str = ""
    queue_s: float = 0.0
    """On the node: from reading the grant to the start."""
    execution_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    environment_stands: bool = True
    """False: it was to make its trajectory's environment first, and could not; nothing of the action was executed."""
    units: dict[str, int] = {}
    """What it was granted."""
    retry_in_s: float = 0.0
    """Of one that was postponed."""
    evidence: Evidence = ""
    environment_ended: TrajectoryEnd = "lost"
    """Of `environment-lost`: how the environment ended."""


class Held(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One grant a node still executes, or has in its line."""

    action: str
    epoch: int
    attempt: int
    stage: int
    units: dict[str, int]
    running_s: float
    waits: bool = False
    """It stands in the node's line and has not begun."""


class Stays(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One trajectory's environment on a node."""

    trajectory: str
    units: dict[str, int]
    """What it holds of the node for its whole life."""


class InventoryTaken(Message, frozen=True, kw_only=True, tag="inventory-taken.v1"):
    """Everything a node holds; what it finished lies before this message in the stream."""

    node: str
    incarnation: str
    epoch: int
    """Of the leader that asked."""
    held: list[Held]
    environments: list[Stays] = []
    """Those that stand, and those that are being made."""
    images: list[str] = []
    """Of its container engine, at most `shared.policy.resources.residency.MOST_HERE`."""


class EnvironmentEnded(Message, frozen=True, kw_only=True, tag="environment.ended.v1"):
    """A trajectory's environment is no more, and what it held is free. Comes after the outcomes of its actions."""

    node: str
    incarnation: str
    trajectory: str
    ended: TrajectoryEnd
    reason: str = ""


class EnvironmentMade(Message, frozen=True, kw_only=True, tag="environment.made.v1"):
    """A trajectory's environment stands, and its first action still executes. At most a heartbeat late; a shorter first
    action only finishes.
    """

    node: str
    incarnation: str
    trajectory: str


class ImagesChanged(Message, frozen=True, kw_only=True, tag="images-changed.v1"):
    """Images that a node has since its last report, and those that it has no more. At most a heartbeat late."""

    node: str
    incarnation: str
    here: list[str] = []
    gone: list[str] = []


class Answered(Message, frozen=True, kw_only=True, tag="answered.v1"):
    """These actions have been answered; the answers are in the store."""

    actions: list[str]
    batches: list[str]
    """The batches they belong to, without repeats."""


Outcome = Started | Finished | InventoryTaken | EnvironmentEnded | EnvironmentMade | ImagesChanged

OUTCOMES: Topic[Outcome] = Topic("outcomes", Outcome, maxlen=16_384)
"""The outcome that an answer or a step to the next stage rests on is dropped by the same write. The rest is bounded:
what is trimmed is found again through journal, inventory and store."""

ANSWERED: Topic[Answered] = Topic("answered", Answered)
"""Written by `finish` itself, which keeps 10 s of it; tailed by every replica that does not lead."""
