"""From the leader to one node: stream `grants.<node>.<incarnation>`, read in order by the manager alone.

Each incarnation has a stream of its own, so a manager that was thought dead can neither read nor trim its successor's.

Every message carries the leader's epoch; the manager refuses a lower one than it has seen.
"""

from __future__ import annotations

from shared.messages.actions import Json
from shared.messages.base import Message, Topic
from shared.messages.environments import EnvironmentSpec


class Granted(Message, frozen=True, kw_only=True, tag="granted.v1"):
    """Run this stage of this action on so many units."""

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
    """What is left of the caller's patience, seconds."""
    trajectory: str = ""
    """Whose environment it acts in; empty: none's."""
    environment: EnvironmentSpec | None = None
    """Make it first, where this trajectory has none on the node. None: it has one there, or it is lost."""
    error_score: float = 0.0
    """Of a sample that ends a trainer's scoring function."""
    exception_score: float | None = None
    """Where a trainer's scoring function raises; None: refused."""


class Revoked(Message, frozen=True, kw_only=True, tag="revoked.v1"):
    """Stop this action if you still hold it; answer with a Finished of status `cancelled`."""

    action: str
    epoch: int
    attempt: int
    recall: bool = False
    """Only if it has not begun; then the status is `lost`, because nobody has asked to cancel it."""


class InventoryAsked(Message, frozen=True, kw_only=True, tag="inventory-asked.v1"):
    """Say what you hold. All grants of earlier epochs lie before this message, so the answer is complete."""

    epoch: int


class ShareSet(Message, frozen=True, kw_only=True, tag="share-set.v1"):
    """Own this many units of a resource from now on. Shrinking never stops a running action."""

    epoch: int
    resource: str
    units: int


class EnvironmentClosed(Message, frozen=True, kw_only=True, tag="environment-closed.v1"):
    """End this trajectory's environment, if there is one; answer with an EnvironmentEnded either way."""

    epoch: int
    trajectory: str


class ImageWanted(Message, frozen=True, kw_only=True, tag="image-wanted.v1"):
    """Environments of this image are about to be asked for: pull it now (RollArt: env.reset must not wait for it)."""

    epoch: int
    image: str


Grant = Granted | Revoked | InventoryAsked | ShareSet | EnvironmentClosed | ImageWanted


def grants_topic(node: str, incarnation: str) -> Topic[Grant]:
    """The stream of one node's incarnation."""
    return Topic(f"grants.{node}.{incarnation}", Grant)
