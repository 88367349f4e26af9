"""Shares: units that each node owns of a pool that the planner scales.

Law: a pool's nodes own its target together, and more where work would otherwise never start: for the head of its queue,
for heads of lanes bound to one node, and for work outside batches. While no planner is alive, they own units for all
work (`Pool.wanted`). Waiting work counts only as far as its quotas let it start now.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.node_choice import fewest_units
from shared.policy.model.chunks import aligned
from shared.policy.model.formulation import Command, SetShare
from shared.policy.resources.chunk_shares import spread_chunks
from shared.policy.resources.chunk_waits import LONGEST_TURN, least_share
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Pool, ZeroQueue


def update_shares(cluster: ClusterState, pool: Pool, now: float, *, blocked: bool = False) -> list[Command]:
    """Update the units that nodes own for a pool. A pool without a target owns all units.

    `blocked`: the head of its queue does not fit the owned units.
    """
    if pool.target is None:
        return []
    head = pool.queue.head()
    action = cluster.queues.queued[head] if head is not None else None
    rule: ZeroQueue = "off"
    if not cluster.queues.planned:
        rule = "blocked" if blocked or (head is not None and head == pool.feasible) else "on"
    startable = (0, 0)
    if pool.quota_demand.sets:
        startable = pool.quota_demand.startable_units(cluster.quotas, now)
    least = max(pool.demand.peak, pool.demand.units + startable[0]) if rule == "on" else rule
    outside = max(pool.outside.peak, pool.outside.units + startable[1])
    bound = _bound_units(cluster, pool, now)
    of_head = None if action is None else fewest_units(cluster, pool, pool, action)
    late = False
    if action is not None and action.work.service:
        late = now - action.queued_s >= LONGEST_TURN * cluster.swap_wait_s
    sort = () if action is None else (action.work.kind, action.work.service, of_head, late)
    inputs = (pool.target, pool.chunk, outside, least, tuple(bound.items()), *sort)
    if inputs == pool.settled:
        return []
    # Nodes of a class may come from several managers: a node that makes calls has no cores.
    nodes = [node for node in cluster.nodes.of(pool) if node.ready and pool.resource in node.resources]
    wanted, shares = _spread_for(pool, nodes, action, of_head, rule, bound, startable, late=late)
    pool.settled = inputs if 0 <= sum(shares.values()) - wanted < pool.chunk else None
    return _set_shares(nodes, pool.resource, shares)


def _spread_for(
    pool: Pool,
    nodes: list[Node],
    head: ActionState | None,
    of_head: Mapping[str, int] | None,
    rule: ZeroQueue,
    bound: dict[str, int],
    startable: tuple[int, int],
    *,
    late: bool,
) -> tuple[int, dict[str, int]]:
    """Return the units that the nodes must own together, and those of each. `of_head`: the fewest for the head; None:
    no node could run it. `late`: it has waited for so long that no released GPU is expected to come back for it where
    the node owns enough.
    """
    able = [] if head is None or of_head is None else [node for node in nodes if head.could_have(node, of_head)]
    needed = of_head.get(pool.resource, 0) if of_head is not None and able else 0
    wanted = pool.wanted(nodes, needed, rule, startable)
    shares = spread_chunks(wanted, nodes, pool.resource, bound, pool.chunk)
    least = {node.name: _least(node, pool, head, needed) for node in able} if head is not None else {}
    if late:
        able = [node for node in able if shares[node.name] < least[node.name] or _has_place(node, pool, head, needed)]
    if able and all(shares[node.name] < least[node.name] for node in able):  # else none would ever own enough for it
        missing = {node.name: least[node.name] - needed for node in able}  # 0, apart from GPUs in other chunks
        host = min(able, key=lambda node: (missing[node.name], -node.limit(pool.resource), node.name))
        # the one that owns most: the choice is stable
        at_least = {**bound, host.name: max(least[host.name], bound.get(host.name, 0))}
        shares = spread_chunks(wanted, nodes, pool.resource, at_least, pool.chunk)
    return wanted, shares


def _least(node: Node, pool: Pool, head: ActionState, needed: int) -> int:
    """Return the fewest units that a node must own to run the head when what is in its way has ended. `needed`: units
    that the head takes. Of GPUs, others keep those that they have outside of the head's chunk.
    """
    chunks = node.resources.get(pool.resource)
    if not needed or not isinstance(chunks, Chunks):
        return needed
    return least_share(chunks, needed, head.work.service)


def _has_place(node: Node, pool: Pool, head: ActionState | None, needed: int) -> bool:
    """Return whether a node has units for the head that are not released. O(chunks of this size)."""
    chunks = node.resources.get(pool.resource)
    if head is None or not needed or not isinstance(chunks, Chunks):
        return True
    return any(chunks.is_open(chunk, head.work.service) for chunk in aligned(chunks.capacity, needed))


def _set_shares(nodes: list[Node], resource: str, shares: dict[str, int]) -> list[Command]:
    commands: list[Command] = []
    for node in nodes:
        units = shares[node.name]
        if node.share(resource) != units:  # also if it is the whole capacity: a former leader may have set less
            node.own(resource, units)
            commands.append(SetShare(node.name, resource, units))
    return commands


def _bound_units(cluster: ClusterState, pool: Pool, now: float) -> dict[str, int]:
    """Node -> units to own there for heads of lanes that fit on no other node, or whose environment has memory
    there. None for a head that lacks quotas, and none where an older attempt of the head is an orphan: no share lets it
    start before.
    """
    bound: dict[str, int] = {}
    for lane in pool.lanes.values():
        if (head := lane.queue.head()) is None:
            continue
        action = cluster.queues.queued[head]
        if action.needed_quotas and not cluster.quotas.fits(action.needed_quotas, now):
            continue
        nodes = [node for node in cluster.nodes.of(pool, lane) if node.ready and action.could_run_on(node)]
        need = action.request.need
        if action.begins and need is not None:
            nodes = [node for node in nodes if node.has_free(need.units)]
        nodes = [node for node in nodes if head not in node.orphans]
        if nodes and not any(node.free(pool.resource) >= action.least_units for node in nodes):
            host = min(nodes, key=lambda node: (-node.limit(pool.resource), node.name))
            bound[host.name] = max(bound.get(host.name, 0), host.taken(pool.resource) + action.least_units)
    return bound
