"""From nodes to the leader: stream `outcomes`. From the leader to the other proxies: stream `answered`. Both bounded.

`Started`, `Finished` and `InventoryTaken` share one stream, so that an inventory comes after every outcome that was
published before it. `Answered` wakes proxies whose callers wait; one that is behind reads the store. It has its own
stream, because the leader writes it and must not be woken by it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.messages.actions import Json
from shared.messages.base import Message, Topic
from shared.policy.model.formulation import TrajectoryEnd

ExecutionStatus = Literal["ok", "timeout", "lost", "refused", "cancelled", "environment-lost", "postponed"]
"""End of one attempt on a node. `ok` and `timeout` are verdicts. `lost` is an infrastructure failure and is retried.
In a trajectory, `environment-lost`: its environment had ended before, and the action was not executed; or the
environment's lifetime ended while the action ran, and it was executed partly. `postponed`: the environment cannot be
created before `retry_in_s`, and the action was not executed; this does not count as an attempt."""

Evidence = Literal["", "separate", "in-process"]
"""Origin of a verdict. `separate`: outside the interpreter that ran the sample. `in-process`: in the same one,
so a sample written to attack its grader may forge it. Empty: the kind forms no verdict."""

RECALLED = "recalled"
"""Reason of an attempt that was recalled before it had begun. Its `lost` is not a failure."""


class Started(Message, frozen=True, kw_only=True, tag="started.v1"):
    """An attempt has begun to execute. Sent if it runs at the manager's next heartbeat; short ones only finish."""

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
    """Time on the node, from reading the grant to the start."""
    execution_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    environment_exists: bool = True
    """False: its trajectory's environment could not be created, so nothing of the action was executed."""
    units: dict[str, int] = {}
    """Granted units."""
    retry_in_s: float = 0.0
    """For `postponed`: seconds until the next attempt is possible."""
    evidence: Evidence = ""
    environment_ended: TrajectoryEnd = "lost"
    """For `environment-lost`: how the environment ended."""


class GrantHeld(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One grant that a node executes, or has in its queue."""

    action: str
    epoch: int
    attempt: int
    stage: int
    units: dict[str, int]
    running_s: float
    queued: bool = False
    """It waits in the node's queue and holds no units."""


class EnvironmentHeld(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One trajectory's environment on a node."""

    trajectory: str
    units: dict[str, int]
    """Units that it holds on the node until it ends."""


class InventoryTaken(Message, frozen=True, kw_only=True, tag="inventory-taken.v1"):
    """All grants and environments of a node. Outcomes of what it finished are before this message in the stream."""

    node: str
    incarnation: str
    epoch: int
    """Epoch of the leader that requested it."""
    held: list[GrantHeld]
    environments: list[EnvironmentHeld] = []
    """Existing environments, and those that are being created."""
    images: list[str] = []
    """Images of its container engine, at most `shared.policy.resources.residency.MOST_PRESENT`."""


class EnvironmentEnded(Message, frozen=True, kw_only=True, tag="environment.ended.v1"):
    """A trajectory's environment has ended, and its units are free. Comes after the outcomes of its actions."""

    node: str
    incarnation: str
    trajectory: str
    ended: TrajectoryEnd
    reason: str = ""


class EnvironmentCreated(Message, frozen=True, kw_only=True, tag="environment.created.v1"):
    """A trajectory's environment exists, and its first action still executes. At most a heartbeat late.

    Not sent if that action finishes before.
    """

    node: str
    incarnation: str
    trajectory: str


class ImagesChanged(Message, frozen=True, kw_only=True, tag="images-changed.v1"):
    """Changes of a node's images since its last report. At most a heartbeat late."""

    node: str
    incarnation: str
    added: list[str] = []
    removed: list[str] = []


class Answered(Message, frozen=True, kw_only=True, tag="answered.v1"):
    """These actions have been answered. The answers are in the store."""

    actions: list[str]
    batches: list[str]
    """Their batches, without repeats."""


Outcome = Started | Finished | InventoryTaken | EnvironmentEnded | EnvironmentCreated | ImagesChanged

OUTCOMES: Topic[Outcome] = Topic("outcomes", Outcome, maxlen=16_384)
"""An outcome behind an answer or a step to the next stage is deleted by the same write. The others are bounded: what
is trimmed is found again through journal, inventory and store."""

ANSWERED: Topic[Answered] = Topic("answered", Answered)
"""`answer_actions` writes it and keeps 10 s of it. Every replica that does not lead reads it."""
