"""The journal: stream `actions`. An entry exists exactly as long as its action is unanswered.

The entry's stream id is the action's arrival, on Valkey's clock. The leader reads with XREAD, without a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from shared.messages.base import ENTRY, Message, Topic
from shared.messages.environments import EnvironmentSpec
from shared.policy.model.elasticity import Elasticity
from shared.runtime.validation import UNREADABLE

Json = bytes
"""JSON text as received. Only its user decodes it."""


class StageWork(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One stage of a reward request (or the only one of a plain action), with its parameters resolved."""

    name: str
    kind: str
    """Action kind (`shared.kinds`)."""
    pool: str
    """Pool of its units: `<resource>@<node class>`."""
    cost: dict[str, tuple[int, int]]
    """Resource -> (fewest, most) units. More than the fewest is granted only of the pool's resource, and only if
    `elasticity` and a duration are known."""
    timeout_s: float
    """Execution limit of this stage; queueing does not count."""
    params: Json
    repeatable: bool = True
    """A second execution changes nothing outside its sandbox."""
    timeout_score: float | None = None
    """Score of a request that meets this stage's time limit; None: the request's. Older entries may end before it."""
    amounts: tuple[int, ...] = ()
    """Allowed amounts of the pool's resource, ascending, if not every amount of its range is allowed."""
    elasticity: Elasticity | None = None
    """E(m) over the pool's resource; None: it is not known whether more units help."""
    duration_s: float | None = None
    """Seconds on one unit, as declared by the trainer. Older entries end before it."""
    error_score: float = 0.0
    """Score of a sample that ends this stage's scoring function. Older entries end before it."""
    exception_score: float | None = None
    """Score if this stage's scoring function raises; None: `refused`. Older entries end before it."""
    quotas: dict[str, float] = {}
    """Quota -> amount that it takes, together with its units; 0: the leader estimates it (`LEARNED`). Older entries end
    before it."""
    service: str = ""
    """Model service that it uses; empty: none. Last field: older entries end before it."""


class ActionSubmitted(Message, frozen=True, kw_only=True, tag="action.submitted.v1"):
    """An accepted reward request or plain action with its stages."""

    action: str
    tenant: str
    task: str = ""
    batch: str = ""
    """Empty outside a batch."""
    request: str = ""
    """The client's own request id."""
    index: int = -1
    """The request's place in its batch, counted at submission; -1 outside a batch."""
    stages: tuple[StageWork, ...]
    budget_s: float
    """Seconds from arrival until the caller no longer needs the answer."""
    start_within_s: float | None = None
    """Answer `expired` at once if the predicted start is later than this after its arrival (`/run_code`)."""
    priority: float = 0.0
    """Lower goes first. The priority of its trajectory is added; it is in the entry's envelope."""
    timeout_score: float | None = None
    """The task's score for a met time limit, unless the stage has its own."""
    trajectory: str = ""
    """Trajectory whose environment it needs; empty: none."""
    environment: EnvironmentSpec | None = None
    """That environment's specification. Set with `trajectory`, so that a journal entry is complete by itself."""
    for_trajectory: str = ""
    """Trajectory that it was submitted for, without its environment (its grading): the trace shows it there."""
    held_by: str = ""
    """The replica that holds the caller's connection (`/run_code`). The action ends with it. Empty: none."""


class CancelRequested(Message, frozen=True, kw_only=True, tag="action.cancel-requested.v1"):
    """Request to cancel an action, or the rest of a batch. The leader handles and then deletes it."""

    action: str = ""
    batch: str = ""
    reason: str = "requested"


class ParkActionRequested(Message, frozen=True, kw_only=True, tag="action.park-requested.v1"):
    """Request to park an action that waits for something outside. The leader handles and then deletes it."""

    action: str


class ResumeActionRequested(Message, frozen=True, kw_only=True, tag="action.resume-requested.v1"):
    """Request to resume a parked action, because its wait is over. The leader handles and then deletes it."""

    action: str


class PriorityRequested(Message, frozen=True, kw_only=True, tag="trajectory.priority-requested.v1"):
    """A trainer has changed the priority of a trajectory. It applies to its unanswered actions; entries of later ones
    carry it. The leader handles and then deletes it.
    """

    trajectory: str
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]


class CloseRequested(Message, frozen=True, kw_only=True, tag="trajectory.close-requested.v1"):
    """A trainer has closed a trajectory. Its unanswered actions are cancelled and its environment is ended."""

    trajectory: str


class UnreadableEntry(Message, frozen=True, kw_only=True, tag="entry.unreadable.v1"):
    """A damaged journal entry or one of another version, as far as its envelope shows. It is never written."""

    action: str = ""
    """The action that it submits; empty: none, or unknown."""
    batch: str = ""
    task: str = ""
    request: str = ""
    trajectory: str = ""
    error: str
    """Reason why it cannot be decoded."""

    def submission(self) -> ActionSubmitted:
        """Return the known part of the submission. It has no stage, so nothing can run."""
        return ActionSubmitted(
            action=self.action,
            tenant="",
            task=self.task,
            batch=self.batch,
            request=self.request,
            trajectory=self.trajectory,
            stages=(),
            budget_s=0.0,
        )


INDEX_FIELD, ACTION_FIELD, BATCH_FIELD, TRAJECTORY_FIELD = b"index", b"action", b"batch", b"trajectory"
PRIORITY_FIELD, DECIDED_FIELD = b"priority", b"decided"
"""The envelope: fields of a submission's entry in addition to the message. Entries of schema 1 have none."""
OLDER_INDEX_FIELD, OLDER_ACTION_FIELD, OLDER_BATCH_FIELD = b"i", b"a", b"b"
"""Their names in entries from before schema 4, which keep them until they are answered."""
SUBMISSION = "action.submitted."
"""Prefix of the kind of a submission, in every version."""
_named = msgspec.msgpack.Decoder()


def unreadable_entry(fields: Mapping[bytes, bytes], error: str) -> UnreadableEntry:
    """Return what is known of an undecodable entry: its envelope, then the texts of its message by field name."""
    message = _texts(fields.get(ENTRY, b""))
    key, batch, trajectory = (
        _text(fields, ACTION_FIELD, OLDER_ACTION_FIELD),
        _text(fields, BATCH_FIELD, OLDER_BATCH_FIELD),
        _text(fields, TRAJECTORY_FIELD),
    )
    if key is None and not message.get("kind", "").startswith(SUBMISSION):
        return UnreadableEntry(error=error)
    return UnreadableEntry(
        action=message.get("action", "") if key is None else key.removeprefix("action:"),
        batch=message.get("batch", "") if batch is None else batch,
        task=message.get("task", ""),
        request=message.get("request", ""),
        trajectory=message.get("trajectory", "") if trajectory is None else trajectory,
        error=error,
    )


def _text(fields: Mapping[bytes, bytes], *names: bytes) -> str | None:
    return next((fields[name].decode(errors="replace") for name in names if name in fields), None)


def _texts(raw: bytes) -> dict[str, str]:
    try:
        message = _named.decode(raw)
    except UNREADABLE:
        return {}
    if not isinstance(message, dict):
        return {}
    return {name: value for name, value in message.items() if isinstance(name, str) and isinstance(value, str)}


Request = CancelRequested | CloseRequested | PriorityRequested | ParkActionRequested | ResumeActionRequested
"""Requests about actions that are in the journal already."""

ACTIONS: Topic[ActionSubmitted | Request | UnreadableEntry] = Topic(
    "actions", ActionSubmitted | Request, unreadable=unreadable_entry
)
"""The journal."""
