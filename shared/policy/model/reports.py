"""Nodes' reports of the attempts they were granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from shared.policy.model.results import AttemptResult


class Ended(msgspec.Struct, frozen=True):
    """End of one attempt as its node reports it. Durations are seconds."""

    action: str
    node: str
    attempt: int
    stage: int
    result: AttemptResult
    queue_s: float = 0.0
    execution_s: float = 0.0
    units: Mapping[str, int] = {}
    """Granted units. After a takeover, this report or the node's inventory is their only source."""


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
    parked: bool = False
    """Its environment is frozen; `units` are those that it needs to continue, and it holds none."""
    resuming: bool = False
    """It is parked and the node has received the request to continue."""
    paused_s: float = 0.0
    """Time for which it was parked, the present one included; no part of `running_s`."""
    service: str = ""
    """Model service that it uses."""
    numbers: tuple[int, ...] = ()
    """Numbers of its units, if they have numbers."""


HeldGrants = Mapping[str, HeldGrant]
"""Action -> what the node executes of it; complete."""


def is_listed(held: HeldGrants, action: str, stage: int, attempt: int) -> bool:
    """Return whether this attempt is among them."""
    holding = held.get(action)
    return holding is not None and (holding.stage, holding.attempt) == (stage, attempt)
