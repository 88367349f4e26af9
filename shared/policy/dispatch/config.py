"""Configuration of a dispatcher; a part of the header of its log."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.elastic.scheduling import ElasticRules


@dataclass(frozen=True)
class DispatchConfig:
    """Configuration of a dispatcher."""

    max_attempts: int = 3
    """Attempts of one stage before it is answered as lost."""
    node_lost_s: float = 10.0
    """Seconds of silence after which a node is lost; its work runs elsewhere."""
    linger_s: float = 10.0
    """Seconds for which units for work outside batches stay owned after the work has ended."""
    overdue_s: float = 15.0
    """Seconds after its timeout at which a grant without outcome makes the leader ask the node for an inventory."""
    placement_lost_s: float = 60.0
    """Seconds after which environments of an absent node are lost; until then it may bring them back."""
    most_ended: int = 512
    """Actions that one turn ends for cancellations, and as many for their deadlines: some 10 ms each, with the
    answers. More wait for later turns."""
    swap_wait_s: float = 5.0
    """Shortest turn of a model service on its chunk: before its end, work of another service does not evict it while
    work waits for it. A turn lasts as long as the swaps around it, up to twelve times this (`chunk_waits.turn_s`)."""
    elastic: ElasticRules = field(default_factory=ElasticRules)
    """Rules for units beyond the fewest."""
