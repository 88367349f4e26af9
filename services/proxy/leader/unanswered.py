"""Data of unanswered actions that only the leader's writes need."""

from __future__ import annotations

from dataclasses import dataclass

from shared.messages.actions import ActionSubmitted
from shared.policy.model.results import AttemptResult
from shared.runtime.units import Seconds


@dataclass(slots=True)
class HeldLease:
    """A lease that this term has granted."""

    attempt: int
    granted_s: float
    """Unix seconds."""
    fence: int = 0
    """0: the store has not granted it yet."""
    expires_s: float = 0.0
    """Unix seconds, by the store's clock: when it expires unless its caller has renewed it."""


@dataclass(slots=True)
class Unanswered:
    """Data of an unanswered action that the leader keeps beside the dispatcher's `ActionState`."""

    entry: str
    """Its journal entry; empty while the journal does not have one yet (`local_leases`, `local_actions`)."""
    arrived_s: Seconds
    """Its arrival, Unix seconds: the time of its journal entry, or of its call if that came first."""
    submitted: ActionSubmitted
    index: int
    result: AttemptResult | None = None
    """Newest result with a verdict or a rejection."""
    outcome: str = ""
    """Stream id of the outcome that has it, until a write has removed the entry."""
    resume: str = ""
    """Journal entry of the newest request to resume it."""
    leased: bool = False
    """It is a lease, and was granted: its caller holds it without a connection."""
    unused: bool = False
    """Its caller has gone before it learned that it has the lease."""
    held: HeldLease | None = None
    """Set if this term has granted it."""
