"""The journal: stream `actions`. An entry exists exactly as long as its action is unanswered (architecture §3).

The entry's stream id is the action's arrival, on Valkey's clock. The leader reads with XREAD, never with a group.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shared.messages.base import ENTRY, Message, Topic
from shared.messages.environments import EnvironmentSpec
from shared.policy.model.elasticity import Elasticity

Json = bytes
"""JSON text as it came; decoded only by who needs it."""


class StageWork(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One stage of a reward request (or the only one of a plain action), with its parameters resolved."""

    name: str
    kind: str
    """Action kind (shared.messages.kinds)."""
    pool: str
    """What it draws units from: `<resource>@<node class>`."""
    cost: dict[str, tuple[int, int]]
    """Resource -> (fewest, most) units. More than the fewest is granted of the pool's resource alone, and only where
    `elasticity` and a duration are known."""
    timeout_s: float
    """Execution limit of this stage; queueing does not count."""
    params: Json
    repeatable: bool = True
    """Running it twice changes nothing outside its sandbox."""
    timeout_score: float | None = None
    """Of a request that meets this stage's time limit; None: the request's. Older entries may end before it."""
    amounts: tuple[int, ...] = ()
    """Of the pool's resource, where not every amount of its range is allowed: those that are, ascending."""
    elasticity: Elasticity | None = None
    """E(m) over the pool's resource; None: more units are not known to help."""
    duration_s: float | None = None
    """Seconds on one unit, as the trainer knows it. Older entries end before it."""
    error_score: float = 0.0
    """Of a sample that ends this stage's scoring function. Older entries end before it."""
    exception_score: float | None = None
    """Where this stage's scoring function raises; None: refused. Last: older entries end before it."""


class ActionSubmitted(Message, frozen=True, kw_only=True, tag="action.submitted.v1"):
    """An accepted reward request or plain action, walking through `stages`."""

    action: str
    tenant: str
    task: str = ""
    batch: str = ""
    """Empty outside a batch."""
    request: str = ""
    """The client's own request id."""
    index: int = -1
    """The request's place in its batch, counted at the door; -1 outside a batch."""
    stages: tuple[StageWork, ...]
    budget_s: float
    """Seconds from arrival until the caller no longer cares."""
    start_within_s: float | None = None
    """Answer `expired` at once when it is predicted to start later than so long after its arrival (`/run_code`)."""
    priority: float = 0.0
    """Lower goes first among equals in expected completion (trajectory priority)."""
    timeout_score: float | None = None
    """The score the task names for a time limit that was met, unless the stage names its own."""
    trajectory: str = ""
    """Whose environment it needs; empty: none's."""
    environment: EnvironmentSpec | None = None
    """What that environment is; set with `trajectory`, so that whoever reads the journal knows all there is to know."""
    held_by: str = ""
    """The replica that holds the caller's connection (`/run_code`): the action ends with it. Empty: none does."""


class CancelAsked(Message, frozen=True, kw_only=True, tag="action.cancel-asked.v1"):
    """Somebody no longer wants an action, or all that is left of a batch. Handled by the leader, then deleted."""

    action: str = ""
    batch: str = ""
    reason: str = "asked"


class CloseAsked(Message, frozen=True, kw_only=True, tag="trajectory.close-asked.v1"):
    """A trainer has closed a trajectory: its unanswered actions are cancelled, its environment ends."""

    trajectory: str


class UnreadableEntry(Message, frozen=True, kw_only=True, tag="entry.unreadable.v1"):
    """A journal entry of another version of ours, or a damaged one: what its envelope shows. It is never written."""

    action: str = ""
    """The action that it submits; empty: it submits none, or it is not known which."""
    batch: str = ""
    task: str = ""
    request: str = ""
    trajectory: str = ""
    error: str
    """Why it does not decode."""

    def submission(self) -> ActionSubmitted:
        """As much of the submission as is known: no stage, so nothing that could run."""
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


ACTION_FIELD, BATCH_FIELD = b"a", b"b"
"""The envelope: fields of a submission's entry beside the message. Entries of schema 1 have none."""
SUBMISSION = "action.submitted."
"""Beginning of the kind of every version's submission."""
_named = msgspec.msgpack.Decoder()


def unreadable_entry(fields: Mapping[bytes, bytes], error: str) -> UnreadableEntry:
    """What can be known of an entry that does not decode: its envelope, then any text of its message by field name."""
    message = _texts(fields.get(ENTRY, b""))
    enveloped = ACTION_FIELD in fields
    if not enveloped and not message.get("kind", "").startswith(SUBMISSION):
        return UnreadableEntry(error=error)
    key = fields.get(ACTION_FIELD, b"").decode(errors="replace")
    return UnreadableEntry(
        action=key.removeprefix("action:") if enveloped else message.get("action", ""),
        batch=fields[BATCH_FIELD].decode(errors="replace") if BATCH_FIELD in fields else message.get("batch", ""),
        task=message.get("task", ""),
        request=message.get("request", ""),
        trajectory=message.get("trajectory", ""),
        error=error,
    )


def _texts(raw: bytes) -> dict[str, str]:
    try:
        message = _named.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {}
    if not isinstance(message, dict):
        return {}
    return {name: value for name, value in message.items() if isinstance(name, str) and isinstance(value, str)}


ACTIONS: Topic[ActionSubmitted | CancelAsked | CloseAsked | UnreadableEntry] = Topic(
    "actions", ActionSubmitted | CancelAsked | CloseAsked, unreadable=unreadable_entry
)
"""The journal."""
