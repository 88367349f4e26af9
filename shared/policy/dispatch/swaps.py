"""Order of work that would evict a model service: requests of one service are batched before a swap.

An action whose service is not resident waits, and work behind it that needs no restore goes first. Laws:
  - it waits only while other work of its pool waits for a service that its restore would evict, and for `swap_wait_s`
    at most from its arrival in the queue;
  - it reserves nothing meanwhile, so that the work behind it may use the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class Swaps:
    """Restores of one scheduling round that are put off."""

    cluster: ClusterState
    now: float
    waiting: set[str] = field(default_factory=set)
    """Actions that wait for the work of other services."""

    def too_early(self, node: Node, action: ActionState) -> bool:
        """Return whether an action does better to wait: on this node it would evict a service that is in demand."""
        waiting, pool = self.cluster.queues.waiting_services, action.work.pool
        if not waiting or self.now - action.queued_s >= self.cluster.swap_wait_s:
            return False
        evicted = node.resources[action.resource].evicts(action.pool_units, action.use())
        if not any((pool, service) in waiting for service in evicted if service != action.work.service):
            return False
        self.waiting.add(action.request.id)
        return True
