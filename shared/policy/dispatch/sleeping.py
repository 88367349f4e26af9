"""Sleeping lanes in a scheduling round: which lanes may sleep, and what their heads reserve. The law is in `lanes`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.blocked import Blocked
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.node_choice import is_possible
from shared.policy.dispatch.quota_waits import Entry, LaneKey, Need, Sleeper, Sort
from shared.policy.order.ebf import EbfKey
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import BACKFILL_DEPTH, BEGINS, Lane, Pool


def sleeper(cluster: ClusterState, pool: Pool, lane: Lane, now: float) -> Sleeper | None:
    """Return how a lane with a blocked head may sleep; None if it must be served in the next round.

    O(`BACKFILL_DEPTH`) if its head lacks quotas, else O(1).
    """
    head = lane.queue.head()
    if head is None or head != lane.feasible:
        return None
    action = cluster.queues.queued[head]
    if not lane.node and not action.work.quotas:
        return None
    key, named = lane.queue.head_key(), tuple(action.needed_quotas.items())
    if lane.node and _waits_for_node(cluster, pool, lane, action):
        return Sleeper(pool, lane, head, key, named)
    if not named or lane.name == BEGINS or (action.scales and not lane.node):
        return None  # its reservation depends on more than nodes and quotas
    lacking = _lacking(cluster, pool, lane, now)
    if not lacking:
        return None
    work, needs = action.work, tuple(sorted(action.needs.items()))
    sort = None if lane.node else (pool.name, work.kind, needs, work.service)
    return Sleeper(pool, lane, head, key, named, lacking, sort)


def _waits_for_node(cluster: ClusterState, pool: Pool, lane: Lane, head: ActionState) -> bool:
    """Return whether nothing can start from a lane, and no share can change for it, before its node changes."""
    for node in cluster.nodes.of(pool, lane):
        if node.limit(pool.resource) < node.capacity.get(pool.resource, 0):
            return False
        if node.ready and (node.free(pool.resource) or not head.pool_units):
            return False
    return True


def _lacking(cluster: ClusterState, pool: Pool, lane: Lane, now: float) -> tuple[Need, ...]:
    """Return a quota that each of the first actions lacks, with the smallest amount; empty if one lacks none.

    Of actions that are alike, one is looked at.
    """
    depth = 1 if lane.alike else BACKFILL_DEPTH + 1
    least: dict[str, float] = {}
    seen: set[object] = set()
    nodes = cluster.nodes.of(pool, lane)
    for name in islice(lane.queue.mixed(), depth):
        action = cluster.queues.queued[name]
        if action.like_key in seen:
            continue
        amounts = action.needed_quotas
        quota = cluster.quotas.lacking(amounts, now) if amounts else None
        if quota is None or (nodes and not is_possible(cluster, pool, lane, action)):
            return ()
        least[quota] = min(least.get(quota, amounts[quota]), amounts[quota])
        if action.is_like_others:
            seen.add(action.like_key)
    return tuple(least.items())


def follows(waits: set[str], nodes: Iterable[Node], action: ActionState) -> bool:
    """Return whether an action waits only because others wait for more of these nodes' units (`waits`: their names).
    Their reservations precede its own.
    """
    waits_itself = action.units is not action.work.units
    return action.scales and not waits_itself and all(node.name in waits for node in nodes if node.ready)


@dataclass(slots=True)
class SleepingHeads:
    """Reservations of the heads of sleeping lanes in one round: those of a round that serves all lanes.

    Such a round computes a reservation when it passes the head's key; it looks for units at the next test of an action
    that takes some of the same resources, and nothing is granted without this test. So heads of one sort that are
    passed between two such tests reserve the same units, and one of them stands for all.
    """

    cluster: ClusterState
    now: float
    waits: set[str]
    """Nodes for whose units elastic work waits."""
    served: set[LaneKey] = field(default_factory=set)
    """Lanes that began to sleep in this round: their heads are among the blocked ones."""
    _known: dict[LaneKey, Blocked] = field(default_factory=dict)
    _passed: dict[Sort, list[tuple[EbfKey, Blocked]]] = field(default_factory=dict)
    """Sort -> (highest key that was passed, a head that stands for those passed since the entry before)."""

    def forbid(self, reached: EbfKey, node: Node, action: ActionState) -> bool:
        """Return whether work that is started there now would delay a sleeping head with at most this key.

        O(sorts of sleeping heads), and O(heads that need one of its quotas, or units of this node that are not free for
        both) until one of them is delayed.
        """
        return any(self._forbids(one, reached, node, action) for one in self._concerned(reached, node, action))

    def _concerned(self, reached: EbfKey, node: Node, action: ActionState) -> Iterator[Sleeper]:
        """Yield the lanes that may have reserved what the action takes; some twice."""
        lanes = self.cluster.queues.lanes
        yield from lanes.on_node.get(node.name, {}).values()
        for sort, entries in lanes.waits.sorts.items():
            if entries[0][0] <= reached and not action.needs.keys().isdisjoint(name for name, _ in sort[2]):
                yield from self._short_of_units(sort, entries, reached, node, action)
        for quota in action.needed_quotas:
            for entries in lanes.waits.naming(quota):
                yield from self._up_to(entries, 0, reached)

    def _short_of_units(
        self, sort: Sort, entries: list[Entry], reached: EbfKey, node: Node, action: ActionState
    ) -> Iterator[Sleeper]:
        """Yield the lanes of a sort whose heads need units that the action would take."""
        passed, at = self._passed.setdefault(sort, []), 0
        newest = bisect_right(entries, passed[-1][0], key=_key) if passed else 0
        first = next(self._up_to(entries, newest, reached), None)
        if first is not None:
            passed.append((reached, self._head(first)))
        for key, head in passed:
            if head.needs_units(self.cluster, node, action, self.now):
                yield from self._up_to(entries, at, key)
            at = bisect_right(entries, key, key=_key)

    def _up_to(self, entries: list[Entry], at: int, key: EbfKey) -> Iterator[Sleeper]:
        for head_key, lane_key in islice(entries, at, None):
            if head_key > key:
                return
            if lane_key not in self.served:
                yield self.cluster.queues.lanes.asleep[lane_key]

    def _forbids(self, one: Sleeper, reached: EbfKey, node: Node, action: ActionState) -> bool:
        if one.key > reached or (one.pool.name, one.lane.name) in self.served:
            return False
        head = self._head(one)
        if one.lane.node == node.name and follows(self.waits, [node], head.head):
            return False
        return head.forbids(self.cluster, node, action, self.now)

    def _head(self, one: Sleeper) -> Blocked:
        lane_key = (one.pool.name, one.lane.name)
        known = self._known.get(lane_key)
        if known is None:
            known = self._known[lane_key] = Blocked(self.cluster.queues.queued[one.head], one.pool, one.lane)
            passed = () if one.sort is None else self._passed.get(one.sort, ())
            like = next((head for key, head in passed if one.key <= key), None)
            if like is not None:
                known.units_s, known.node = like.units_s, like.node
        return known


def _key(entry: Entry) -> EbfKey:
    return entry[0]
