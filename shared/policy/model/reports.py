"""What nodes report of the attempts they were granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.policy.model.formulation import TrajectoryEnd


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt's end, as its node tells it. Durations are seconds."""

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
    environment_stands: bool = True
    """False: it was to make its trajectory's environment first, and could not; nothing of the action was executed."""
    units: Mapping[str, int] = field(default_factory=dict)
    """What it was granted; a leader that has taken over knows it only from here, or from the node's account."""

    retry_in_s: float = 0.0
    """Of one that was postponed: it cannot be done before."""
    environment_ended: TrajectoryEnd = "lost"
    """Of `environment-lost`: how the environment ended."""

    @property
    def is_verdict(self) -> bool:
        """It says something about the work; everything else says something about us."""
        return self.status in ("ok", "timeout")


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """One grant a node still executes or has in its line, as its inventory tells it."""

    stage: int
    attempt: int
    running_s: float
    units: Mapping[str, int] = field(default_factory=dict)
    """Units it takes."""
    waits: bool = False
    """It stands in the node's line and holds none yet."""


HeldGrants = Mapping[str, HeldGrant]
"""Action -> what a node executes of it: a full account."""


def holds(held: HeldGrants, action: str, stage: int, attempt: int) -> bool:
    """Is this attempt among them?"""
    holding = held.get(action)
    return holding is not None and (holding.stage, holding.attempt) == (stage, attempt)
