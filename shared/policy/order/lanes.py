"""A line of waiting work: the order, what no present node could take, and what waits for its own trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.order.tenants import FairQueue


@dataclass(slots=True)
class Lane:
    """What waits for the same nodes of a pool: its own lane for all of them, one for each node that work is bound to.

    Work that begins an environment has a lane of its own as well: where memory is short, nothing else waits behind it.
    """

    name: str
    node: str = ""
    """The only node that could take it; empty: any of the pool's."""
    queue: FairQueue = field(default_factory=FairQueue)
    parked: set[str] = field(default_factory=set)
    """Waiting actions that no node of the lane could ever take; they come back to the queue when nodes change."""
    behind: set[str] = field(default_factory=set)
    """Waiting actions whose trajectory still has an earlier one: they come to the queue when it is answered."""
    postponed: dict[str, float] = field(default_factory=dict)
    """Waiting actions that their node asked to try later -> when they come back to the queue."""
    feasible: str = ""
    """The head that some node is known to be able to take one day."""

    @property
    def waiting(self) -> int:
        """How many actions."""
        return len(self.queue) + len(self.parked) + len(self.behind) + len(self.postponed)
