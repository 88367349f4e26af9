"""The journal: stream `actions`. An entry exists exactly as long as its action is unanswered (architecture §3).

The entry's stream id is the action's arrival, on Valkey's clock. The leader reads with XREAD, never with a group.
"""

from __future__ import annotations

import msgspec

from shared.messages.base import Message, Topic
from shared.messages.environments import EnvironmentSpec
from shared.policy.elasticity import Elasticity

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
    """Seconds on one unit, as the trainer knows it. Last: older entries end before it."""


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


class CancelAsked(Message, frozen=True, kw_only=True, tag="action.cancel-asked.v1"):
    """Somebody no longer wants an action, or all that is left of a batch. Handled by the leader, then deleted."""

    action: str = ""
    batch: str = ""
    reason: str = "asked"


class CloseAsked(Message, frozen=True, kw_only=True, tag="trajectory.close-asked.v1"):
    """A trainer has closed a trajectory: its unanswered actions are cancelled, its environment ends."""

    trajectory: str


ACTIONS: Topic[ActionSubmitted | CancelAsked | CloseAsked] = Topic(
    "actions", ActionSubmitted | CancelAsked | CloseAsked
)
"""The journal."""
