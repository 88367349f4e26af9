"""Order of work that would evict a model service: requests of one service are batched before a swap.

An action whose service is not resident waits, and work behind it that needs no restore goes first. Laws:
  - it waits only while a service that its restore would evict has its turn: other work of the pool waits for it, or
    the action itself is planned (`engine_choice`) and may use an engine of another degree. A turn of `turn_s` begins
    with its first grant there after it became resident; if it was restored for a grant, with the first report that one
    executes, and before that report with the expected end of the restore;
  - it also waits, and evicts no service for which work waits, if it is predicted to begin elsewhere as soon as after
    this swap and the one that brings the other service back: on a chunk that holds its service and is used by another
    one, or that nothing has to leave for which work waits. It reserves that chunk, and waits for two swaps at most, and
    for `LONGEST_TURN`: work of the others may come back;
  - work behind it restores nothing on the units for which it waits, so no later turn begins there;
  - it waits for no work that cannot start: if nothing in any lane was granted for which it waits, it is (`call_waits`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.resources.chunk_waits import LONGEST_TURN, free_first, turn_s
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class Swaps:
    """Restores of one scheduling round that are put off."""

    cluster: ClusterState
    now: float
    waiting: set[str] = field(default_factory=set)
    """Actions for which it was too early on a node: they wait for the work of other services."""
    insisting: str = ""
    """Action that waits no longer."""
    spared: dict[str, tuple[Node, float]] = field(default_factory=dict)
    """Action that waits for another chunk -> its node, and when it is predicted to be free."""
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
            return not action.scales and self._spares(node, action)
        self.waiting.add(action.request.id)
        self._wanted.setdefault(node.name, set()).update(numbers)
        return True

    def puts_off(self, action: str) -> bool:
        """Return whether an action waits for the work of other services, and has no chunk to wait for elsewhere."""
        return action in self.waiting and action not in self.spared

    def _spares(self, node: Node, action: ActionState) -> bool:
        """Return whether an action waits for another chunk, and does not evict a service for which work waits. O(nodes
        of its pool).
        """
        own, use, units = action.work.service, action.use(self.now), action.granted_units
        pool, resource = self.cluster.queues.pool(action.work.pool), node.resources[action.resource]
        waiting, shortest_s = pool.services.keys() - {own}, self.cluster.swap_wait_s
        if next(iter(resource.evicts(units, use, waiting)), None) is None:
            return False
        two_swaps_s = 2 * (resource.begins_s(units, use) - self.now)
        longest_s = min(two_swaps_s, LONGEST_TURN * shortest_s)
        if action.spares_since_s and self.now - action.spares_since_s >= longest_s:
            return False
        first_s, found = self.now + two_swaps_s, None
        times = {"now": self.now, "waited_s": self.now - action.queued_s}
        for other in self.cluster.nodes.of(pool, action.lane):
            chunks = other.resources.get(action.resource)
            if not (isinstance(chunks, Chunks) and other.accepts(action.request.id, action.work.kind)):
                continue
            free_s, chunk = free_first(chunks, units, own, waiting, shortest_s, **times, spares=True)
            if chunk is None or free_s > self.now + longest_s:
                continue
            begins_s = max(self.now, free_s) + chunks.models.swap_s(chunk, own)
            if begins_s <= first_s:
                first_s, found = begins_s, (other, free_s)
        if found is None:
            return False
        action.spares_since_s = action.spares_since_s or self.now
        self.spared[action.request.id] = found
        return True

    def _is_someones_turn(self, node: Node, action: ActionState) -> bool:
        own, use, resource = action.work.service, action.use(), node.resources[action.resource]
        services = self.cluster.queues.pool(action.work.pool).services
        planned = self.cluster.elastic.rule is not None and self.cluster.durations.scalable(action) is not None
        waiting = services.keys() if planned or services.get(own, 0) > 1 else services.keys() - {own}
        evicted = list(resource.evicts(action.granted_units, use, waiting))
        if not evicted:
            return False
        shortest_s, swap_s = self.cluster.swap_wait_s, resource.begins_s(action.granted_units, use) - use.now
        return any(since_s > self.now - turn_s(shortest_s, swap_s, paid_s) for _, since_s, paid_s in evicted)
