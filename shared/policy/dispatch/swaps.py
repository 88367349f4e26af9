"""Order of work that would evict a model service: requests of one service are batched before a swap.

An action whose service is not resident waits, and work behind it that needs no restore goes first. Laws:
  - it waits only while a service that its restore would evict has its turn: other work of the pool waits for it, or
    the action itself is planned (`engine_choice`) and may use an engine of another degree. A turn of `turn_s` begins
    with its first grant there after it became resident; if it was restored for a grant, with the first report that one
    executes, and before that report with the expected end of the restore;
  - work behind it restores nothing on the units for which it waits, so no later turn begins there;
  - it waits for no work that cannot start: if nothing in any lane was granted for which it waits, it is (`call_waits`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.resources.chunk_waits import turn_s
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class Swaps:
    """Restores of one scheduling round that are put off."""

    cluster: ClusterState
    now: float
    waiting: set[str] = field(default_factory=set)
    """Actions that wait for the work of other services."""
    insisting: str = ""
    """Action that waits no longer."""
    _wanted: dict[str, set[int]] = field(default_factory=dict)
    """Node -> numbers of the units for which actions wait."""

    def too_early(self, node: Node, action: ActionState) -> bool:
        """Return whether an action does better to wait: on this node it would evict a service that has its turn."""
        resource, use = node.resources[action.resource], action.use()
        numbers = resource.restores_on(action.granted_units, use)
        if not numbers or action.request.id == self.insisting:
            return False
        wanted = self._wanted.get(node.name, set())
        if wanted.isdisjoint(numbers) and not self._is_someones_turn(node, action):
            return False
        self.waiting.add(action.request.id)
        self._wanted.setdefault(node.name, set()).update(numbers)
        return True

    def _is_someones_turn(self, node: Node, action: ActionState) -> bool:
        own, use, resource = action.work.service, action.use(), node.resources[action.resource]
        services = self.cluster.queues.pool(action.work.pool).services
        planned = self.cluster.elastic.rule is not None and self.cluster.durations.scalable(action) is not None
        waiting = services.keys() if planned or services.get(own, 0) > 1 else services.keys() - {own}
        swap_s = resource.begins_s(action.granted_units, use) - use.now
        shortest_s, evicted = self.cluster.swap_wait_s, resource.evicts(action.granted_units, use, waiting)
        return any(since_s > self.now - turn_s(shortest_s, swap_s, paid_s) for _, since_s, paid_s in evicted)
