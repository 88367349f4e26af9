"""From nodes to the leader: stream `outcomes`. From the leader to the other proxies: stream `answered`. Both bounded.

`Started`, `Finished` and `InventoryTaken` share one stream, so that an inventory comes after every outcome that was
published before it. `Answered` wakes proxies whose callers wait; one that is behind reads the store. It has its own
stream, because the leader writes it and must not be woken by it.
"""

from __future__ import annotations

import msgspec

from shared.messages.base import Message, Topic
from shared.messages.leases import LeasesGranted
from shared.policy.model.formulation import TrajectoryEnd
from shared.policy.model.results import AttemptResult

RECALLED = "recalled"
"""Reason of an attempt that was recalled before it had begun. Its `lost` is not a failure."""


class Started(Message, frozen=True, kw_only=True, tag="started.v1"):
    """An attempt has begun to execute. Sent if it runs at the manager's next heartbeat; short ones only finish."""

    action: str
    node: str
    epoch: int
    attempt: int


class Parked(Message, frozen=True, kw_only=True, tag="parked.v1"):
    """An attempt is frozen and its units are free. It has not ended."""

    action: str
    node: str
    epoch: int
    attempt: int


class Finished(Message, frozen=True, kw_only=True, tag="finished.v2"):
    """An attempt has ended and its units are free."""

    action: str
    node: str
    incarnation: str
    epoch: int
    attempt: int
    stage: int
    result: AttemptResult
    queue_s: float = 0.0
    """Time on the node, from reading the grant to the start."""
    execution_s: float = 0.0
    units: dict[str, int] = {}
    """Granted units."""


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
    parked: bool = False
    """It is frozen and holds no units; `units` are those that it needs to continue."""
    resuming: bool = False
    """It is parked, and waits on the node for its units."""
    paused_s: float = 0.0
    """Time without units since it began, the present one included. `running_s` does not contain it."""
    service: str = ""
    """Model service that it uses. Older nodes end before it."""
    numbers: list[int] = []
    """Numbers of its units of the pool's resource. Older nodes end before it."""


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


class ServiceHeld(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One model service of a node. A chunk is [first unit, number of units]."""

    service: str
    degrees: list[int]
    """Units that one engine of it may use."""
    concurrency: int
    awake_gb: float
    """Memory of each unit that an engine needs; the most of all degrees."""
    resident: list[tuple[int, int]] = []
    """Chunks that hold it."""
    unusable: list[tuple[int, int]] = []
    """Chunks where its engine is quarantined, or its late load offers them to other services."""
    restoring_s: float = 0.0
    """Seconds until an engine of it is expected to be resident; 0: no restore is under way. Older nodes end before it.
    """
    restore_s: dict[int, float] = {}
    """Degree -> measured seconds of a restore, on a chunk that `asleep` lacks. Older nodes end before it."""
    evict_s: dict[int, float] = {}
    """Degree -> measured seconds of an eviction, at the level that costs least. Older nodes end before it."""
    awake_gb_by: dict[int, float] = {}
    """Degree -> memory of each unit that an engine of this degree needs. Older nodes end before it."""
    asleep: list[tuple[int, int, float]] = []
    """Chunks where an engine of it sleeps, each with the measured seconds of its restore there; 0: not measured. Older
    nodes end before it.
    """
    why_unusable: str = ""
    """Reason of the engine in `unusable` that is probed first, and the time of its probe; empty: none. Older nodes end
    before it.
    """


class ServicesChanged(Message, frozen=True, kw_only=True, tag="services-changed.v1"):
    """All model services of a node. Published before each inventory, and when anything of it has changed."""

    node: str
    incarnation: str
    resource: str
    services: list[ServiceHeld]
    device_gb: list[float]
    """Memory of each unit."""
    bad: list[int] = []
    """Units that must not be granted."""
    released: list[int] = []
    """Units that are given away, or drained for that. They are granted again after they were acquired, and they are
    acquired when the node's share needs them."""
    problems: dict[str, str] = {}
    """Service -> reason why the node cannot use its entry. Older nodes do not send it."""


class Confirmed(Message, frozen=True, kw_only=True, tag="confirmed.v1"):
    """What follows from an outcome that was reported directly is stored."""

    action: str
    stage: int
    epoch: int
    attempt: int


class Answered(Message, frozen=True, kw_only=True, tag="answered.v1"):
    """These actions have been answered. The answers are in the store."""

    actions: list[str]
    batches: list[str]
    """Their batches, without repeats."""


Outcome = (
    Started
    | Finished
    | Parked
    | InventoryTaken
    | EnvironmentEnded
    | EnvironmentCreated
    | ImagesChanged
    | ServicesChanged
)

OUTCOMES: Topic[Outcome] = Topic("outcomes", Outcome, maxlen=16_384)
"""An outcome behind an answer or a step to the next stage is deleted by the same write. The others are bounded: what
is trimmed is found again through journal, inventory and store."""

CONFIRMATIONS: Topic[Confirmed] = Topic("confirmed", Confirmed)
"""Messages of a channel, which no stream has (`shared.bus.channels`)."""

ANSWERED: Topic[Answered | LeasesGranted] = Topic("answered", Answered | LeasesGranted)
"""`answer_actions` and `grant_leases` write it and keep 10 s of it. Every replica that does not lead reads it."""
