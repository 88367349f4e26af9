"""Choice of a node for an action by rankings, so that its cost does not grow with the number of nodes.

The choices are those of the plain scans `place`, `Prefetch.place` and `reservation`, which serve lanes of one node and
are the oracles in tests/shared/policy/dispatch/test_node_choice.py.

Nodes of a class are ranked separately for each set of kinds that they offer, so that nodes without an action's kind are
not walked. In practice there are few such sets.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.placement import load_of, place_environment, reservation, units_free_at
from shared.policy.dispatch.prefetch import HORIZON_S, MOST, RECALL_S
from shared.policy.model.formulation import EnvironmentNeed
from shared.policy.resources.ledger import Node, place
from shared.policy.resources.pools import Lane, Pool
from shared.policy.resources.rankings import Key, Ranking
from shared.policy.resources.resource import Use

Kinds = frozenset[str]

FEW: Final = 16
"""Number of nodes of a class up to which they are scanned: that is cheaper than to keep rankings."""


def places(
    cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState, now: float, but: AbstractSet[str] = frozenset()
) -> Iterator[Node]:
    """Yield the nodes where the action can start now, the best first. `action.units` may change between two of them.

    `but`: names of nodes to leave out.

    O(log nodes) for the first, with three exceptions: a new environment costs O(nodes with free units of the pool's
    resource), work of a pool whose resource is not a plain count O(nodes), and work of several resources also the nodes
    that have the first free and lack another one.
    """
    nodes = cluster.nodes.of(pool, lane)
    are_few = bool(lane.node) or len(nodes) <= FEW
    if action.begins:
        nodes = nodes if are_few else _with_units(cluster, pool, action.pool_units)
        nodes = [node for node in nodes if node.name not in but] if but else nodes
        while (best := place_environment(nodes, action, pool.resource, now)) is not None:
            yield best
            nodes = [node for node in nodes if node is not best]
    elif cluster.nodes.are_structured(pool):
        yield from _structured_places(nodes, action, pool.resource, now, but)
    elif are_few or not cluster.nodes.are_plain(pool):
        name, kind = action.request.id, action.work.kind
        nodes = [node for node in nodes if node.name not in but] if but else nodes
        while (best := place(nodes, name, kind, action.units, pool.resource)) is not None:
            yield best
            nodes = [node for node in nodes if node is not best]
    else:
        yield from _ranked_places(cluster, pool, action, but)


def _structured_places(
    nodes: list[Node], action: ActionState, resource: str, now: float, but: AbstractSet[str]
) -> Iterator[Node]:
    """Yield nodes in the order of `Resource.rank`. O(nodes) for the first."""
    name, kind, use = action.request.id, action.work.kind, action.use(now)
    left = [node for node in nodes if node.name not in but and node.accepts(name, kind)]
    while left:
        ranked = [
            (rank, node.name, node) for node in left if (rank := node.rank(resource, action.units, use)) is not None
        ]
        if not ranked:
            return
        best = min(ranked)[2]
        yield best
        left = [node for _, _, node in ranked if node is not best]


def _scanned(cluster: ClusterState, pool: Pool, lane: Lane) -> list[Node] | None:
    """Return the nodes of a lane if they are so few that they are scanned."""
    nodes = cluster.nodes.of(pool, lane)
    return nodes if lane.node or len(nodes) <= FEW else None


def _with_units(cluster: ClusterState, pool: Pool, units: int) -> list[Node]:
    """Ready nodes with so many free units of the pool's resource, by name."""
    make = partial(partial, _free_key, pool.node_class, pool.resource, None)
    entries = cluster.nodes.rankings.get(("free", pool.node_class, pool.resource, None), make).entries
    end = bisect_right(entries, ((-units, math.inf), ""))
    return [cluster.nodes.present[name] for name in sorted(name for _, name in entries[:end])]


def _ranked_places(cluster: ClusterState, pool: Pool, action: ActionState, but: AbstractSet[str]) -> Iterator[Node]:
    """Yield nodes in the order of `place`. Those that have the pool's resource free and lack another one are passed."""
    present, resource, name = cluster.nodes.present, pool.resource, action.request.id
    walks = []
    for kinds in _offering(cluster, pool, action.work.kind):
        make = partial(partial, _free_key, pool.node_class, resource, kinds)
        walks.append(cluster.nodes.rankings.get(("free", pool.node_class, resource, kinds), make).entries)
    for (free,), node_name in walks[0] if len(walks) == 1 else heapq.merge(*walks):
        if node_name in but:
            continue
        if action.units.get(resource, 0) > -free:
            return  # the others have as many free at most
        node = present[node_name]
        if name not in node.orphans and node.has_free(action.units):
            yield node


def most_free(cluster: ClusterState, pool: Pool, lane: Lane, but: AbstractSet[str] = frozenset()) -> int:
    """Return the largest number of free units of the pool's resource on a ready node of the lane. `but`: names of nodes
    to leave out.
    """
    if (nodes := _scanned(cluster, pool, lane)) is not None:
        return max((node.free(pool.resource) for node in nodes if node.ready and node.name not in but), default=0)
    make = partial(partial, _free_key, pool.node_class, pool.resource, None)
    entries = cluster.nodes.rankings.get(("free", pool.node_class, pool.resource, None), make).entries
    return next((int(-free) for (free,), name in entries if name not in but), 0)


def owns_less(cluster: ClusterState, pool: Pool, lane: Lane) -> bool:
    """Return whether a node of the lane owns less than its capacity."""
    if (nodes := _scanned(cluster, pool, lane)) is not None:
        return any(_owned_key(pool.node_class, pool.resource, node) is not None for node in nodes)
    make = partial(partial, _owned_key, pool.node_class, pool.resource)
    return bool(cluster.nodes.rankings.get(("owned", pool.node_class, pool.resource), make).entries)


def place_prefetched(
    cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState, expected_s: float
) -> Node | None:
    """Return the node whose queue may take the action. O(log nodes) for each number of units that short work holds."""
    if (nodes := _scanned(cluster, pool, lane)) is not None:
        return cluster.prefetch.place(nodes, action, expected_s)
    if not cluster.prefetch.may_wait(action, expected_s):
        return None
    best: tuple[float, str] | None = None
    for kinds in _offering(cluster, pool, action.work.kind):
        make = partial(partial, _prefetch_key, cluster, pool.node_class, pool.resource, kinds)
        ranking = cluster.nodes.rankings.get(("prefetch", pool.node_class, pool.resource, kinds), make)
        for found in _shortest_waits(cluster, ranking, action, expected_s):
            if best is None or found < best:
                best = found
    return None if best is None else cluster.nodes.present[best[1]]


def stale_prefetched(cluster: ClusterState, now: float) -> Iterator[ActionState]:
    """Prefetched actions to recall: they have waited longer than `RECALL_S`, and either another node can start them
    now or only long work is ahead of them.

    Work that was expected to be short and runs overdue no longer counts as short. A recalled action returns to the
    queue, where order and deadlines apply. O(actions on nodes with short work), and one choice for each sort of work
    and for each action that was granted before.
    """
    short, full = cluster.prefetch.short, set[tuple[str, str]]()
    for name in list(short):
        for action in cluster.granted.get(name, {}).values():
            if action.short and now - action.expected_end_s > RECALL_S:
                cluster.prefetch.uncount_short(action)
    for action in cluster.prefetch.stale_prefetched(now):
        sort = (action.work.pool, action.work.kind)  # each takes one unit of its pool's resource
        if action.node in short:
            if sort in full:
                continue
            pool = cluster.queues.pool(action.work.pool)
            if next(places(cluster, pool, pool, action, now), None) is None:
                if action.stage == 0 and action.attempt == 1:  # else a node may be left out for its earlier attempt
                    full.add(sort)
                continue
        yield action


def reserve_node(
    cluster: ClusterState, pool: Pool, lane: Lane, head: ActionState, now: float
) -> tuple[float, Node | None]:
    """Return what `reservation` returns for all nodes of the lane. O(log nodes) for each change of a node; O(nodes) for
    units with a structure, because when a chunk is free depends on the services that wait.
    """
    nodes = cluster.nodes.of(pool, lane) if cluster.nodes.are_structured(pool) else _scanned(cluster, pool, lane)
    if nodes is not None:
        return reservation(cluster, nodes, head, now)
    need = head.request.need if head.begins else None
    held = None if need is None else (need.kind, tuple(need.units.items()))
    purpose = ("reservation", pool.node_class, head.work.kind, tuple(head.needs.items()), held, head.work.service)
    sort = (pool.node_class, head.work.kind, head.needs, need, head.use())
    ranking = cluster.nodes.rankings.get(purpose, lambda: _ReservationKey(cluster, now, *sort))
    key_of = ranking.key_of
    assert isinstance(key_of, _ReservationKey), f"{key_of} is of another purpose"
    key_of.pass_to(now, ranking)
    if not ranking.entries:
        return math.inf, None
    (until_s, _), name = ranking.entries[0]
    return max(now, until_s), cluster.nodes.present[name]


def is_possible(cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState) -> bool:
    """Return whether a node of the lane could run the action if it were empty. O(1); O(nodes) for the first of its sort
    after the nodes have changed.
    """
    return fewest_units(cluster, pool, lane, action) is not None


def fewest_units(cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState) -> Mapping[str, int] | None:
    """Return the fewest units with which a node of the lane could run the action if it were empty; None: no node could.
    Cost as `is_possible`, for each degree.
    """
    for units in action.choices():  # for most actions one
        if _could_have(cluster, pool, lane, action, units):
            return units
    return None


def _could_have(cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState, units: Mapping[str, int]) -> bool:
    work, need = action.work, action.request.need
    if (nodes := _scanned(cluster, pool, lane)) is not None and (lane.node or not work.service):
        return any(action.could_have(node, units) for node in nodes)
    begun = need.kind if action.begins and need else ""
    sort = (pool.node_class, work.kind, tuple(action.needs_of(units).items()), begun, work.service)
    known = cluster.nodes.possible.get(sort)
    if known is None:
        known = any(action.could_have(node, units) for node in cluster.nodes.of(pool))
        cluster.nodes.remember_possible(sort, known)
    return known


def _offering(cluster: ClusterState, pool: Pool, kind: str) -> list[Kinds]:
    return [kinds for kinds in cluster.nodes.kinds_of(pool.node_class) if kind in kinds]


def _shortest_waits(
    cluster: ClusterState, ranking: Ranking, action: ActionState, expected_s: float
) -> Iterator[tuple[float, str]]:
    """Yield (expected wait, node) for the best node of each number of units that short work holds."""
    entries, at, name = ranking.entries, 0, action.request.id
    while at < len(entries):
        short = entries[at][0][0]
        shortest_s = HORIZON_S
        for index in range(at, len(entries)):
            (units, before_s), node = entries[index]
            wait_s = (before_s + expected_s) / short
            if units != short or wait_s > shortest_s:
                break
            if name not in cluster.nodes.present[node].orphans:
                yield wait_s, node
                shortest_s = wait_s  # another may wait as long, because of rounding
        at = bisect_right(entries, ((short, math.inf), ""), lo=at)


# ---- keys of the rankings --------------------------------------------------------------------------------------------


def _free_key(node_class: str, resource: str, kinds: Kinds | None, node: Node) -> Key | None:
    if not node.ready or node.node_class != node_class or (kinds is not None and node.kinds != kinds):
        return None
    return (-node.free(resource),)


def _owned_key(node_class: str, resource: str, node: Node) -> Key | None:
    if node.node_class != node_class or node.limit(resource) >= node.capacity.get(resource, 0):
        return None
    return ()


def _prefetch_key(cluster: ClusterState, node_class: str, resource: str, kinds: Kinds, node: Node) -> Key | None:
    """(units of short work, unit-seconds in the queue); None if no more may be queued."""
    short = cluster.prefetch.short.get(node.name, 0)
    if not short or not node.ready or node.node_class != node_class or node.kinds != kinds:
        return None
    queue = cluster.prefetch.queues.get(node.name)
    length, before_s = (len(queue.actions), queue.expected_s) if queue is not None else (0, 0.0)
    if length >= MOST * short or resource not in node.prefetches:
        return None
    return short, before_s


@dataclass(slots=True)
class _ReservationKey:
    """(time at which a head's units are free together, share taken of what its environment holds) on each node.

    If the units are free by now, the time counts as minus infinity, and the share decides. Time does not go back, so
    each key changes once.
    """

    cluster: ClusterState
    now: float
    node_class: str
    kind: str
    needs: Mapping[str, int]
    begun: EnvironmentNeed | None
    """Environment that the head would begin."""
    use: Use

    def __call__(self, node: Node) -> Key | None:
        if not node.ready or node.node_class != self.node_class:
            return None
        if (self.begun is not None and self.begun.kind not in node.kinds) or not node.could_ever(
            self.kind, self.needs, self.use
        ):
            return None
        until_s = units_free_at(self.cluster, node, self.needs, -math.inf)
        if until_s <= self.now:
            until_s = -math.inf
        if self.begun is None:
            return None if until_s == math.inf else (until_s, 0.0)
        return until_s, load_of(node, self.begun)

    def pass_to(self, now: float, ranking: Ranking) -> None:
        """Update the keys of nodes whose units have become free by now."""
        if now < self.now:
            self.now = now
            ranking.fill(self.cluster.nodes.present)
        self.now = now
        entries = ranking.entries
        at = bisect_right(entries, ((-math.inf, math.inf), ""))
        while at < len(entries) and entries[at][0][0] <= now:
            (_, load), name = entries[at]
            ranking.put(name, (-math.inf, load))
            at += 1
