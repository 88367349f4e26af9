"""/v1/nodes, /v1/pools, /v1/plans: the nodes, their use, and the planner's decisions with their reasons.

Read from the hash of hellos and from streams, so every replica gives the same answer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

from fastapi import APIRouter, Query

from services.proxy.state import CurrentState, ProxyState
from shared.api.mesh import HealthView, NodeList, NodeState, NodeView, PlanList, PlanView, PoolList, PoolView
from shared.bus.nodes import StoredHello, read_hellos
from shared.bus.streams import newest
from shared.kinds.registry import all_kinds
from shared.messages.nodes import NODES, Bye, Heartbeat, Hello
from shared.messages.targets import TARGETS, TargetSet
from shared.policy.dispatch.backlog import PoolBacklog, cause_of
from shared.runtime.app import problem_responses

router = APIRouter(prefix="/v1", tags=["mesh"])

LOOKED_AT = 4096
"""Newest entries of a stream that are read."""
LACKS_SHOWN = 16
"""Causes of stuck work shown of a pool: those for which most actions wait."""


async def _nodes(proxy: ProxyState) -> list[NodeView]:
    hellos = {stored.hello.node: stored for stored in await read_hellos(proxy.redis)}
    beats: dict[tuple[str, str], Heartbeat] = {}
    gone: set[tuple[str, str]] = set()
    seen: dict[str, float] = {}
    for at, message in await newest(proxy.redis, NODES, LOOKED_AT):
        seen.setdefault(message.node, at)
        match message:
            case Hello():
                hellos.setdefault(message.node, StoredHello(message, at))
            case Heartbeat():
                beats.setdefault((message.node, message.incarnation), message)
            case Bye():
                gone.add((message.node, message.incarnation))
    now = proxy.clock.unix()
    views = []
    for name, (hello, hello_at) in sorted(hellos.items()):
        key = (name, hello.incarnation)
        beat = beats.get(key)
        silent_s = now - max(hello_at, seen.get(name, 0.0))
        present: NodeState = "silent" if silent_s > proxy.settings.node_lost_s else "ready"
        views.append(
            NodeView(
                name=name,
                incarnation=hello.incarnation,
                node_class=hello.node_class,
                state="gone" if key in gone else present,
                capacity=hello.capacity,
                owned=beat.owned if beat else {},
                used=beat.used if beat else {},
                owned_unit_s=beat.owned_unit_s if beat else {},
                used_unit_s=beat.used_unit_s if beat else {},
                cold_start_s=beat.cold_start_s if beat else {},
                kinds=hello.kinds,
                runtimes=hello.runtimes,
                labels=hello.labels,
                last_seen_s=max(0.0, silent_s),
            )
        )
    return views


@router.get("/nodes", summary="Nodes", responses=problem_responses(422, 503))
async def list_nodes(proxy: CurrentState) -> NodeList:
    return NodeList(nodes=await _nodes(proxy))


@router.get("/pools", summary="Pools of units", responses=problem_responses(422, 503))
async def list_pools(proxy: CurrentState) -> PoolList:
    """Owned and used units are as the nodes last reported, at most a heartbeat old.

    What waits is from the leader's last snapshot. A pool without nodes is shown while something waits in it.
    """
    members: dict[str, list[tuple[str, NodeView]]] = defaultdict(list)
    for node in await _nodes(proxy):
        if node.state == "ready":
            for resource in node.capacity:
                members[f"{resource}@{node.node_class}"].append((resource, node))
    targets: dict[str, TargetSet] = {}
    for _, message in await newest(proxy.redis, TARGETS, LOOKED_AT):
        if isinstance(message, TargetSet):
            targets.setdefault(message.pool, message)
    backlog = {pool.name: pool for pool in await proxy.store.pools()}
    health = proxy.health.view()
    silent = health.planner is False
    names = sorted(members.keys() | targets.keys() | backlog.keys())
    return PoolList(
        pools=[
            _pool(members.get(name, []), targets.get(name), backlog.get(name) or PoolBacklog(name, 0), silent=silent)
            for name in names
        ],
        health=health,
    )


def _pool(
    members: list[tuple[str, NodeView]], target: TargetSet | None, backlog: PoolBacklog, *, silent: bool
) -> PoolView:
    """Return one pool: its ready nodes (each with the pool's resource), its target and the leader's backlog.

    `silent`: no planner holds its lease, so the last target's reason is out of date.
    """
    capacity = {node.name: node.capacity[resource] for resource, node in members}
    reason = "no plan yet: everything is owned" if members else "no node is in this pool"
    if members and backlog.name.partition("@")[0] in all_kinds().held:  # the planner publishes no targets for it
        reason = "not planned: nodes offer all they have"
    if target is not None and silent:
        reason = (
            "no planner holds its lease: the zero-queue rule serves what waits, beside the last target of "
            f"{target.units:,}"
        )
    elif target is not None:
        reason = target.reason
    return PoolView(
        name=backlog.name,
        nodes=len(members),
        target=target.units if target is not None else None,
        capacity=sum(capacity.values()),
        owned=sum(node.owned.get(resource, capacity[node.name]) for resource, node in members),
        used=sum(node.used.get(resource, 0) for resource, node in members),
        waiting=backlog.waiting,
        stuck=backlog.stuck,
        lacks=[f"{cause_of(stuck, backlog.name)} ({stuck.waiting} wait)" for stuck in backlog.lacks[:LACKS_SHOWN]],
        reason=reason,
    )


@router.get("/health", summary="Stores, leader, planner, disk", responses=problem_responses(422))
async def get_health(proxy: CurrentState) -> HealthView:
    """Answered from this replica's memory, so it works while Valkey and Postgres are away."""
    return proxy.health.view()


@router.get("/plans", summary="The planner's decisions, newest first", responses=problem_responses(422, 503))
async def list_plans(
    proxy: CurrentState, limit: Annotated[int, Query(ge=1, le=1000, description="Most decisions in the list.")] = 100
) -> PlanList:
    decided = [m for _, m in await newest(proxy.redis, TARGETS, LOOKED_AT) if isinstance(m, TargetSet)]
    plans: list[PlanView] = []
    for position, message in enumerate(decided[:limit]):
        previous = next((m.units for m in decided[position + 1 :] if m.pool == message.pool), None)
        plans.append(
            PlanView(
                decided_at=message.decided_at,
                pool=message.pool,
                previous=previous,
                target=message.units,
                reason=message.reason,
            )
        )
    return PlanList(plans=plans)
