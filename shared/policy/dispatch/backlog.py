"""What waits, pool by pool, and what of it is stuck: no present node could ever take it.

Stuck work is accepted, because nodes may come: it waits for one until its budget ends, and callers should be told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import STARTS, EnvironmentNeed, Work
from shared.policy.resources.pools import BEGINS, Pool

T = TypeVar("T")
Units = tuple[tuple[str, int], ...]

MOST_TOLD = 1024
"""Pools, sorts of work in each, and batches that are told of: those where most waits."""


@dataclass(frozen=True, slots=True)
class Lack:
    """One sort of work that is stuck in a pool."""

    kind: str
    units: dict[str, int]
    waiting: int
    """How many actions."""


@dataclass(frozen=True, slots=True)
class PoolBacklog:
    """What waits in one pool."""

    name: str
    waiting: int
    """How many actions, those that are stuck among them."""
    lacks: list[Lack] = field(default_factory=list)
    begins: int = 0
    """How many of them begin an environment."""
    held_up: str = ""
    """Why the first of those does not begin now."""

    @property
    def stuck(self) -> int:
        """How many actions."""
        return sum(lack.waiting for lack in self.lacks)


@dataclass(frozen=True, slots=True)
class Backlog:
    """All that waits."""

    pools: list[PoolBacklog] = field(default_factory=list)
    stuck: dict[str, int] = field(default_factory=dict)
    """Batch -> how many of its actions are stuck."""


def survey(cluster: ClusterState) -> Backlog:
    """What waits now. O(pools + stuck actions), and O(waiting actions) where a pool has work and no nodes.

    What has become stuck since it came (nodes have gone) is told when its turn comes near.
    """
    waiting = {pool.name: sum(lane.waiting for lane in pool.all_lanes()) for pool in cluster.pools.values()}
    sorts: defaultdict[str, Counter[tuple[str, Units]]] = defaultdict(Counter)
    batches: Counter[str] = Counter()
    stuck = Counter(
        (
            action_state.work.pool,
            _kind(action_state.work, _begun(action_state)),
            tuple(action_state.needs.items()),
            action_state.request.batch,
        )
        for action_state in _stuck(cluster)
    )
    for (name, kind, units, batch), count in stuck.items():
        sorts[name][kind, units] += count
        if batch:
            batches[batch] += count
    pools = [
        PoolBacklog(
            name,
            count,
            [Lack(kind, dict(units), n) for (kind, units), n in _most(sorts[name])],
            cluster.pools[name].lanes[BEGINS].waiting if BEGINS in cluster.pools[name].lanes else 0,
            why_held_up(cluster, cluster.pools[name]),
        )
        for name, count in _most(Counter(waiting))
        if count
    ]
    return Backlog(pools, dict(_most(batches)))


def _most(counted: Counter[T]) -> list[tuple[T, int]]:
    return counted.most_common(MOST_TOLD)


def _stuck(cluster: ClusterState) -> Iterator[ActionState]:
    for pool in cluster.pools.values():
        for lane in pool.all_lanes():
            for action in lane.parked:
                yield cluster.queued[action]
    deserted = {pool.name for pool in cluster.pools.values() if not cluster.nodes_of(pool)}
    if deserted:
        for action_state in cluster.queued.values():
            if action_state.work.pool in deserted:
                yield action_state


def _begun(action_state: ActionState) -> EnvironmentNeed | None:
    """The environment that it would begin."""
    return action_state.request.need if action_state.begins else None


def _kind(work: Work, begun: EnvironmentNeed | None) -> str:
    """All that a node has to offer for it: `env.bash` and, where it begins an environment, `runtime.docker`."""
    return work.kind if begun is None else f"{work.kind} and {begun.kind}"


def lacking(kind: str, units: Mapping[str, int], pool: str) -> str:
    """What the mesh would need to have for such work, in words."""
    amounts = ", ".join(f"{name}={count}" for name, count in units.items())
    return f"no node of class {pool.partition('@')[2]!r} offers {kind}" + (f" with {amounts}" if amounts else "")


def why_held_up(cluster: ClusterState, pool: Pool) -> str:
    """Why the next environment of a pool does not begin now, though some node could make it one day; else empty."""
    lane = pool.lanes.get(BEGINS)
    head = lane.queue.head() if lane is not None else None
    if head is None:
        return ""
    action_state = cluster.queued[head]
    nodes = [node for node in cluster.nodes_of(pool, lane) if node.ready and action_state.could_run_on(node)]
    short = [name for name, count in action_state.needs.items() if all(node.free(name) < count for node in nodes)]
    if not nodes:
        return ""
    return " and ".join(_SHORT.get(name, f"no {name} are free") for name in short) or "no node has all it needs free"


_SHORT = {STARTS: "as many are being made as may be at once", "memory_mb": "the memory for environments is taken"}
"""Resource -> what it means that too little of it is free."""


def why_it_waits_to_begin(work: Work, pools: list[PoolBacklog]) -> str:
    """Why work that begins an environment waits; empty where the leader has not told that anything does."""
    for pool in pools:
        if pool.name == work.pool and pool.held_up:
            return f"it waits to begin its environment, with {pool.begins} in {pool.name}: {pool.held_up}"
    return ""


def why_it_waited(cluster: ClusterState, action_state: ActionState) -> str:
    """Why an action has not begun before its deadline came."""
    work, lane = action_state.work, action_state.lane
    if lane is not None and action_state.request.id in lane.behind:
        return "its deadline came while it waited for an earlier action of its trajectory"
    if action_state.postponed and action_state.begins:
        return f"its deadline came while its environment could not be made: {action_state.postponed}"
    if lane is not None and lane.node and lane.node not in cluster.nodes:
        return f"its deadline came while {lane.node}, where its environment is, was away"
    if any(action_state.could_run_on(node) for node in cluster.nodes_of(cluster.pool(work.pool))):
        return f"its deadline came while it waited for {work.pool}"
    return lacking(_kind(work, _begun(action_state)), action_state.needs, work.pool)


def why_stuck(work: Work, pools: list[PoolBacklog], need: EnvironmentNeed | None = None) -> str:
    """Why this work waits in vain for now; empty where it does not. `need`: of an action of a trajectory."""
    needs = [(work.kind, dict(work.units))]
    if need is not None:
        needs.append((_kind(work, need), need.begun_by(work.units)))
    for pool in pools:
        for lack in pool.lacks if pool.name == work.pool else ():
            if (lack.kind, lack.units) in needs:
                return f"{lacking(lack.kind, lack.units, work.pool)} now; it waits for one until its budget ends"
    return ""
