"""Scheduling round: shares of nodes, the order of pools, the head of each, reservations and backfill.

Law: among requests of a pool that fit, the earliest batch of the tenant in turn goes first. A head that does not fit
reserves units on the node where they are predicted to be free together first. On that node, later work may start only
if it is predicted to end before that time or needs none of the head's resources. Pools are served in the order of their
heads' keys, so a resource that several pools use is reserved for the oldest need. Short heads may be prefetched (see
`prefetch`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.elastic_grants import Fresh, busy, grant_elastic_units, units_worth_waiting_for
from shared.policy.dispatch.placement import place_environment, reservation
from shared.policy.model.formulation import Command, Grant, SetShare
from shared.policy.order.lanes import Lane
from shared.policy.resources.ledger import Node, place, spread
from shared.policy.resources.pools import BACKFILL_DEPTH, Pool, ZeroQueue


@dataclass(slots=True)
class Blocked:
    """Head that waits for units, with its reservation, which is computed on first use."""

    head: ActionState
    nodes: list[Node]
    """Nodes of its pool."""
    node: Node | None = None
    """Node where its units are predicted to be free together first; None if no ready node will ever have them."""
    until_s: float | None = None
    """Start of the reservation; infinity if it waits for what environments hold."""

    def forbids(self, cluster: ClusterState, node: Node, action: ActionState, now: float) -> bool:
        """Return whether this work, started there now, would delay the head."""
        if self.until_s is None:
            self.until_s, self.node = reservation(cluster, self.nodes, self.head, now)
        if node is not self.node or self.head.needs.keys().isdisjoint(action.needs):
            return False
        if self.until_s == math.inf:
            return action.begins
        return now + cluster.durations.expect_at_most(action) > self.until_s


@dataclass(slots=True)
class SchedulingRound:
    """Decisions of one round so far."""

    cluster: ClusterState
    now: float
    commands: list[Command]
    blocked: list[Blocked] = field(default_factory=list)
    fresh: list[Fresh] = field(default_factory=list)
    """Grants of this round, in order; none has been sent yet."""
    scales: bool = False
    """A grant of this round might get more than its fewest units."""
    waits: set[str] = field(default_factory=set)
    """Nodes for whose units elastic work waits: the first action that does better by waiting decides for all behind
    it."""
    busy_s: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Node -> seconds until each unit taken before this round is predicted free."""

    def forbids(self, node: Node, action: ActionState) -> bool:
        """Return whether this work, started there now, would delay a blocked head."""
        return any(one.forbids(self.cluster, node, action, self.now) for one in self.blocked)

    def too_early(self, node: Node, action: ActionState) -> bool:
        """Return whether it does better to wait for more of this node's units.

        Elastic work that starts on the last free unit keeps one unit to its end, though many might be free soon. If it
        should wait, it is treated as if it needed that many units: it gets a reservation, work that ends earlier may
        use the units, and all elastic work behind it waits too. If enough are free, that many are held for it in this
        round. Otherwise the next action would take them before `grant_elastic_units` can grant them.
        """
        free, wanted = node.free(action.resource), action.work.amounts[-1]
        elastic = self.cluster.elastic
        if free >= wanted or elastic.rule is None or not elastic.patient:
            return False
        busy_s = self.busy_s.get(node.name)
        if busy_s is None:
            busy_s = self.busy_s[node.name] = busy(self.cluster, self.now, node, action.resource, self.granted(node))
        wanted = units_worth_waiting_for(self.cluster, action, free, busy_s)
        action.units = {**action.work.units, action.resource: wanted}
        if wanted > free:
            self.waits.add(node.name)
        return wanted > free

    def follows(self, nodes: list[Node], action: ActionState) -> bool:
        """Return whether it waits only because others wait for more of these nodes' units. Their reservations precede
        its own.
        """
        waits_itself = action.units is not action.work.units
        return action.scales and not waits_itself and all(node.name in self.waits for node in nodes if node.ready)

    def granted(self, node: Node) -> set[str]:
        """Actions that were granted on the node in this round."""
        return {one.action.request.id for one in self.fresh if one.node is node}


def schedule(cluster: ClusterState, now: float) -> list[Command]:
    """Run one round: update shares that may have changed, then grant what fits, pool by pool."""
    commands: list[Command] = []
    cluster.promote(now)
    if cluster.queues.dirty:
        for name in sorted(cluster.queues.dirty):
            commands += _share(cluster, cluster.queues.pools[name])
        cluster.queues.dirty.clear()
        cluster.promote(now)
    waiting = [(pool, lane) for pool in cluster.queues.pools.values() for lane in pool.all_lanes() if lane.queue]
    round_ = SchedulingRound(cluster, now, commands)
    if len(waiting) == 1:
        while _serve(round_, *waiting[0]):
            pass
    else:
        _serve_all(round_, waiting)
    return grant_elastic_units(cluster, now, commands, round_.fresh) if round_.scales else commands


def _serve_all(round_: SchedulingRound, waiting: list[tuple[Pool, Lane]]) -> None:
    """Serve the lanes; each time, the lane whose head has the lowest key."""
    heads = [(lane.queue.head_key(), at) for at, (_, lane) in enumerate(waiting)]
    heapq.heapify(heads)
    while heads:
        _, at = heads[0]
        if _serve(round_, *waiting[at]):
            heapq.heapreplace(heads, (waiting[at][1].queue.head_key(), at))
        else:
            heapq.heappop(heads)


def park_stuck(cluster: ClusterState, action: ActionState) -> None:
    """Set a new action aside if no present node could ever take it. Deep in a queue, this would not be noticed."""
    lane = action.lane
    if lane is None or action.request.id in lane.behind:
        return
    nodes = cluster.nodes.of(cluster.queues.pool(action.work.pool), lane)
    for node in nodes:
        if action.could_run_on(node):
            return
    if nodes:
        cluster.queues.park(lane, action)


def _share(cluster: ClusterState, pool: Pool, *, blocked: bool = False) -> list[Command]:
    """Update the units that nodes own for a pool. A pool without a target owns all units.

    `blocked`: the head of its queue does not fit the owned units.
    """
    if pool.target is None:
        return []
    resource = pool.resource
    head = pool.queue.head()
    action = cluster.queues.queued[head] if head is not None else None
    rule: ZeroQueue = "off"
    if not cluster.queues.planned:
        rule = "blocked" if blocked or (head is not None and head == pool.feasible) else "on"
    least = pool.demand.peak if rule == "on" else rule
    bound = _bound(cluster, pool)
    head_wish = (action.work.kind, action.work.units) if action is not None else ()
    wish = (pool.target, pool.outside.peak, least, tuple(bound.items()), *head_wish)
    if wish == pool.settled:
        return []
    nodes = [node for node in cluster.nodes.of(pool) if node.ready]
    able = [] if action is None else [node for node in nodes if action.could_run_on(node)]
    needed = action.pool_units if action is not None and able else 0
    wanted = pool.wanted(nodes, needed, rule)
    shares = spread(wanted, nodes, resource, bound)
    if able and all(shares[node.name] < needed for node in able):  # else no node would ever own enough for the head
        host = min(able, key=lambda node: (-node.limit(resource), node.name))  # owns most already: the choice is stable
        shares = spread(wanted, nodes, resource, {**bound, host.name: max(needed, bound.get(host.name, 0))})
    pool.settled = wish if sum(shares.values()) == wanted else None
    commands: list[Command] = []
    for node in nodes:
        units = shares[node.name]
        if node.share.get(resource) != units:  # also if it is the whole capacity: a former leader may have set less
            node.share[resource] = units
            commands.append(SetShare(node.name, resource, units))
    return commands


def _bound(cluster: ClusterState, pool: Pool) -> dict[str, int]:
    """Node -> units to own there for heads of lanes that fit on no other node, or whose environment has memory
    there.
    """
    bound: dict[str, int] = {}
    for lane in pool.lanes.values():
        if (head := lane.queue.head()) is None:
            continue
        action = cluster.queues.queued[head]
        nodes = [node for node in cluster.nodes.of(pool, lane) if node.ready and action.could_run_on(node)]
        need = action.request.need
        if action.begins and need is not None:
            nodes = [node for node in nodes if node.holds(need.held)]
        if nodes and not any(node.free(pool.resource) >= action.pool_units for node in nodes):
            host = min(nodes, key=lambda node: (-node.limit(pool.resource), node.name))
            bound[host.name] = max(bound.get(host.name, 0), host.used.get(pool.resource, 0) + action.pool_units)
    return bound


def _serve(round_: SchedulingRound, pool: Pool, lane: Lane) -> bool:
    """Grant the head of a lane, or reserve units for it. False: the lane is finished for this round."""
    cluster, resource, head = round_.cluster, pool.resource, lane.queue.head()
    if head is None:
        return False
    nodes, action = cluster.nodes.of(pool, lane), cluster.queues.queued[head]
    node = _place(round_, pool, nodes, action)
    if node is not None:
        _grant(round_, lane, action, node, is_head=True)
    elif head != lane.feasible and nodes and not any(action.could_run_on(node) for node in nodes):
        cluster.queues.park(lane, action)
    elif pool.target is not None and _owns_less(nodes, resource) and (shares := _share(cluster, pool, blocked=True)):
        round_.commands += shares
        cluster.promote(round_.now)
    elif (node := _place_prefetched(round_, nodes, action)) is not None:
        _grant(round_, lane, action, node, is_head=True, prefetched=True)
    else:
        lane.feasible = head
        if not round_.follows(nodes, action):
            round_.blocked.append(Blocked(action, nodes))
        _backfill(round_, pool, lane, nodes)
        return False
    return bool(lane.queue)


def _owns_less(nodes: list[Node], resource: str) -> bool:
    """Return whether a node owns less than its capacity."""
    return any(node.limit(resource) < node.capacity.get(resource, 0) for node in nodes)


def _place(round_: SchedulingRound, pool: Pool, nodes: list[Node], action: ActionState) -> Node | None:
    if action.scales:
        action.units = action.work.units  # decided anew each time
        if round_.waits:
            nodes = [node for node in nodes if node.name not in round_.waits]
    while True:
        if action.begins:
            node = place_environment(nodes, action, pool.resource, round_.now)
        else:
            node = place(nodes, action.request.id, action.work.kind, action.units, pool.resource)
        if node is None or not (
            (round_.blocked and round_.forbids(node, action)) or (action.scales and round_.too_early(node, action))
        ):
            return node
        nodes = [other for other in nodes if other is not node]


def _place_prefetched(round_: SchedulingRound, nodes: list[Node], action: ActionState) -> Node | None:
    """Return the node whose queue may take a head that does not fit, if any."""
    cluster = round_.cluster
    if not cluster.prefetch.short:
        return None
    node = cluster.prefetch.place(nodes, action, cluster.durations.expect(action))
    return None if node is None or round_.forbids(node, action) else node


def _backfill(round_: SchedulingRound, pool: Pool, lane: Lane, nodes: list[Node]) -> None:
    """Grant work behind a head that does not fit, as its reservation allows."""
    cluster, resource = round_.cluster, pool.resource
    spare = [node for node in nodes if node.ready and node.free(resource)]
    if not spare:
        return
    most = max(node.free(resource) for node in spare)
    for action in [cluster.queues.queued[name] for name in _behind(lane)]:
        if action.pool_units > most:
            continue
        node = _place(round_, pool, spare if action.pool_units else nodes, action)
        if node is not None:
            _grant(round_, lane, action, node, is_head=False)
            spare = [node for node in spare if node.free(resource)]
            if not spare:
                return
            most = max(node.free(resource) for node in spare)
        elif not any(action.could_run_on(node) for node in nodes):
            cluster.queues.park(lane, action)


def _behind(lane: Lane) -> Iterator[str]:
    for depth, name in enumerate(lane.queue.mixed()):
        if depth > BACKFILL_DEPTH:
            return
        if depth:
            yield name


def _grant(
    round_: SchedulingRound, lane: Lane, action: ActionState, node: Node, *, is_head: bool, prefetched: bool = False
) -> None:
    cluster, request, begins = round_.cluster, action.request, action.begins
    expected_s = action.expected_s if action.work.duration_s is not None else cluster.durations.expect(action)
    charged_s = expected_s * max(1, action.pool_units)
    lane.queue.charge(request.tenant, charged_s, ends_turn=is_head)
    cluster.queues.dequeue(action)
    if prefetched or not action.scales:
        action.units, action.expected_s = action.work.units, expected_s
    else:
        fewest = action.units is action.work.units  # else it has waited for more units
        action.expected_s = expected_s if fewest else cluster.durations.expect(action, action.granted_units)
    action.move("granted")
    action.attempt += 1
    cluster.assign(action, node, round_.now, prefetched=prefetched)
    if begins:
        cluster.begin_environment(action, node, round_.now)
    budget = max(0.0, request.deadline_s - round_.now)
    if not prefetched:
        round_.fresh.append(Fresh(len(round_.commands), action, node, charged_s, is_head))
        round_.scales = round_.scales or action.scales
    round_.commands.append(Grant(request.id, node.name, action.attempt, action.stage, action.units, budget, begins))
