"""Lanes: waiting work with its order, and with the actions set aside."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.order.tenants import FairQueue


@dataclass(slots=True)
class Lane:
    """Waiting work for the same nodes of a pool: one lane for all nodes, and one for each node that work is bound to.

    Work that begins an environment also has its own lane: if memory is short, nothing else waits behind it.
    """

    name: str
    node: str = ""
    """The only node that can run it; empty: any of the pool's."""
    queue: FairQueue = field(default_factory=FairQueue)
    parked: set[str] = field(default_factory=set)
    """Waiting actions that no node of the lane could ever take; queued again when nodes change."""
    behind: set[str] = field(default_factory=set)
    """Waiting actions behind an earlier one of their trajectory; queued when that is answered."""
    postponed: dict[str, float] = field(default_factory=dict)
    """Postponed actions -> time at which they are queued again."""
    feasible: str = ""
    """Head that some node is known to be able to take eventually."""

    @property
    def waiting(self) -> int:
        """Number of actions."""
        return len(self.queue) + len(self.parked) + len(self.behind) + len(self.postponed)
