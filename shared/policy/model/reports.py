"""Nodes' reports of the attempts they were granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.policy.model.formulation import TrajectoryEnd


@dataclass(frozen=True, slots=True)
class Ended:
    """End of one attempt as its node reports it. Durations are seconds."""

    action: str
    node: str
    attempt: int
    stage: int
    status: str
    """ok, timeout, lost, refused, cancelled, environment-lost, postponed."""
    passed: bool | None = None
    queue_s: float = 0.0
    execution_s: float = 0.0
    reason: str = ""
    environment_exists: bool = True
    """False: the attempt failed to create its trajectory's environment, and nothing of the action was executed."""
    units: Mapping[str, int] = field(default_factory=dict)
    """Granted units. After a takeover, this report or the node's inventory is their only source."""

    retry_in_s: float = 0.0
    """Seconds before which a retry is useless, for a postponed attempt."""
    environment_ended: TrajectoryEnd = "lost"
    """End of the environment, for `environment-lost`."""

    @property
    def is_verdict(self) -> bool:
        """The status is a statement about the sample. Every other status is an infrastructure failure or a
        cancellation.
        """
        return self.status in ("ok", "timeout")


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """One grant that a node executes or has in its queue, from its inventory."""

    stage: int
    attempt: int
    running_s: float
    units: Mapping[str, int] = field(default_factory=dict)
    """Units it takes."""
    queued: bool = False
    """It is in the node's queue and holds no units yet."""


HeldGrants = Mapping[str, HeldGrant]
"""Action -> what the node executes of it; complete."""


def holds(held: HeldGrants, action: str, stage: int, attempt: int) -> bool:
    """Return whether this attempt is among them."""
    holding = held.get(action)
    return holding is not None and (holding.stage, holding.attempt) == (stage, attempt)
