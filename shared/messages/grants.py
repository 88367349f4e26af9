"""From the leader to one node: stream `grants.<node>.<incarnation>`, read in order by the node's manager alone.

Each incarnation has its own stream. So a manager that was treated as dead can neither read nor trim its successor's.

Every message has the leader's epoch. The manager rejects a lower epoch than it has seen.
"""

from __future__ import annotations

from shared.messages.actions import Json
from shared.messages.base import Message, Topic
from shared.messages.environments import EnvironmentSpec
from shared.policy.model.formulation import FailedCalls


class Granted(Message, frozen=True, kw_only=True, tag="granted.v1"):
    """Run this stage of this action on these units."""

    action: str
    epoch: int
    attempt: int
    tenant: str
    stage: int
    work: str
    """Action kind."""
    params: Json
    units: dict[str, int]
    timeout_s: float
    budget_s: float
    """Seconds that are left of the caller's budget."""
    trajectory: str = ""
    """Trajectory whose environment it acts in; empty: none."""
    environment: EnvironmentSpec | None = None
    """Create it first if the trajectory has none on the node. None: it exists there, or it is lost."""
    error_score: float = 0.0
    """Score of a sample that ends a trainer's scoring function."""
    exception_score: float | None = None
    """Score if a trainer's scoring function raises; None: `refused`."""
    quotas: dict[str, float] = {}
    """Amounts that it has taken from quotas, for people. The leader's ledger counts them."""
    service: str = ""
    """Model service that it uses; empty: none."""
    numbers: list[int] = []
    """Numbers of its units of the pool's resource, if they have numbers: its GPUs."""
    failed_calls: FailedCalls | None = None
    """Failed calls of this stage, as the last attempt has reported them; None: not known to the leader."""


class Revoked(Message, frozen=True, kw_only=True, tag="revoked.v1"):
    """Stop this action if the node still holds it. The answer is a Finished of status `cancelled`."""

    action: str
    epoch: int
    attempt: int
    recall: bool = False
    """Stop it only if it has not begun. Then the status is `lost`, because no caller has cancelled it."""


class AttemptParkRequested(Message, frozen=True, kw_only=True, tag="attempt-park-requested.v1"):
    """Freeze this attempt and free its units. The answer is a `Parked`, or the end of the attempt."""

    action: str
    epoch: int
    attempt: int
    serial: int
    """Orders the messages about parking of one epoch; a repeated one is ignored."""


class AttemptResumed(Message, frozen=True, kw_only=True, tag="attempt-resumed.v1"):
    """Continue this parked attempt on the units of its grant. Other cores than before may be assigned."""

    action: str
    epoch: int
    attempt: int
    serial: int
    """As in `AttemptParkRequested`."""


class InventoryRequested(Message, frozen=True, kw_only=True, tag="inventory-requested.v1"):
    """Report the node's inventory. All grants of earlier epochs are before this message, so the report is complete."""

    epoch: int


class ShareSet(Message, frozen=True, kw_only=True, tag="share-set.v1"):
    """Own this many units of a resource from now on. A smaller share does not stop running actions."""

    epoch: int
    resource: str
    units: int


class EnvironmentClosed(Message, frozen=True, kw_only=True, tag="environment-closed.v1"):
    """End this trajectory's environment if it exists. The answer is an EnvironmentEnded in any case."""

    epoch: int
    trajectory: str


class ImageRequested(Message, frozen=True, kw_only=True, tag="image-requested.v1"):
    """Environments of this image will be needed soon: pull it now (RollArt: env.reset must not wait for it)."""

    epoch: int
    image: str


Grant = (
    Granted
    | Revoked
    | AttemptParkRequested
    | AttemptResumed
    | InventoryRequested
    | ShareSet
    | EnvironmentClosed
    | ImageRequested
)


def grants_topic(node: str, incarnation: str) -> Topic[Grant]:
    """Return the topic of one node's incarnation."""
    return Topic(f"grants.{node}.{incarnation}", Grant)
