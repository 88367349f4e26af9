"""Predicted start times, for requests that ask to be rejected instead of started late.

Law: a rejection is final and a late start is not, so what waits ahead is assumed to be short. Unless the trainer has
declared its duration, it counts with `UNKNOWN_FRACTION` of its timeout at most. The history of a task is no proof of
the next program's duration: one burst of slow programs must not close the pool to the quick ones after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.order.estimates import UNKNOWN_FRACTION
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Pool


class PoolUsage(NamedTuple):
    """Units of a pool's resource on some nodes."""

    capacity: int
    used: int
    left_s: float
    """Expected remaining unit-seconds of running work."""


@dataclass(slots=True)
class StartPredictor:
    """Predictions of one moment, before any grant. The counts are shared by all new requests of a sort."""

    cluster: ClusterState
    now: float
    _usages: dict[tuple[str, str, tuple[tuple[str, int], ...]], PoolUsage] = field(default_factory=dict)

    def in_time(self, action: ActionState, by_s: float) -> bool:
        """Return whether a new request is predicted to start by then. True while no node has sent an inventory.

        O(granted) for the first of its sort; as `predict` if it would be late behind everything that waits.
        """
        pool = self.cluster.queues.pool(action.work.pool)
        usage = self._usage(pool, action)
        early = self.now <= by_s and usage.left_s + pool.queued_s <= (by_s - self.now) * usage.capacity
        return not usage.capacity or early or self.predict(action, by_s) <= by_s

    def predict(self, action: ActionState, by_s: float = float("inf")) -> float:
        """Predicted start of a new request if it were queued now, absolute seconds; optimistic about later arrivals.

        The work before it (by `_hopeful_s`), divided by the units of its pool; minus infinity if no node has sent an
        inventory. O(granted + queue ahead), bounded; counting stops once the start lies beyond `by_s`.
        """
        cluster, pool = self.cluster, self.cluster.queues.pool(action.work.pool)
        capacity, used, ahead_s = self._usage(pool, action)
        if not capacity:
            return float("-inf")
        busy = used + action.pool_units
        enough_s = (by_s - self.now) * capacity
        key = cluster.queues.batches.key(action.request, cluster.durations.learned)
        for name in pool.queue.before(action.request.tenant, key):
            other = cluster.queues.queued[name]
            ahead_s += _hopeful_s(other) * other.pool_units
            busy += other.pool_units
            if busy > capacity and ahead_s > enough_s:
                break
        return self.now + ahead_s / capacity if busy > capacity else self.now

    def _usage(self, pool: Pool, action: ActionState) -> PoolUsage:
        sort = (pool.name, action.work.kind, tuple(action.needs.items()))
        usage = self._usages.get(sort)
        if usage is None:
            nodes = [node for node in self.cluster.nodes.of(pool) if node.ready and action.could_run_on(node)]
            usage = self._usages[sort] = self._count(pool.resource, nodes)
        return usage

    def _count(self, resource: str, nodes: list[Node]) -> PoolUsage:
        capacity = sum(node.capacity.get(resource, 0) for node in nodes)
        used = sum(node.taken(resource) for node in nodes)
        held = [one for node in nodes for one in self.cluster.granted.get(node.name, {}).values()]
        ends = [(one.expected_end_s, one.units) for one in held if not one.parked]
        left_s = sum(max(0.0, end_s - self.now) * units.get(resource, 0) for end_s, units in ends)
        return PoolUsage(capacity, used, left_s)


def _hopeful_s(action: ActionState) -> float:
    """Seconds that queued work counts with: its declared duration, or the bound in this module's law."""
    if action.work.duration_s is not None:
        return action.expected_s
    return min(action.expected_s, action.work.timeout_s * UNKNOWN_FRACTION)
