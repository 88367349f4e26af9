"""Waiting actions by pool, and those that are stuck: no present node could ever take them.

Stuck work is accepted because such a node may join. It waits for one until its budget ends, and callers are informed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.service_reasons import why_unserved
from shared.policy.model.formulation import EnvironmentNeed, Work
from shared.policy.model.waiting import QuotaBacklog
from shared.policy.resources.pools import BEGINS, Pool
from shared.policy.resources.quota_refusals import why_never
from shared.policy.resources.resource import PLAIN

T = TypeVar("T")
Units = tuple[tuple[str, int], ...]

MOST_REPORTED = 1024
"""Most pools, sorts of work in each, and batches that are reported: those with the most waiting actions."""


@dataclass(frozen=True, slots=True)
class StuckWork:
    """One sort of work that is stuck in a pool."""

    kind: str
    units: dict[str, int]
    waiting: int
    """Number of actions."""
    quotas: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    """Reason, if quotas cannot give what it needs or its model service is the cause; empty: nodes lack something."""


@dataclass(frozen=True, slots=True)
class PoolBacklog:
    """Waiting actions of one pool."""

    name: str
    waiting: int
    """Number of actions, stuck ones included."""
    lacks: list[StuckWork] = field(default_factory=list)
    begins: int = 0
    """Number of them that begin an environment."""
    held_up: str = ""
    """Reason why the first of those does not begin now."""

    @property
    def stuck(self) -> int:
        """Number of stuck actions."""
        return sum(stuck.waiting for stuck in self.lacks)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Backlog of all pools."""

    pools: list[PoolBacklog] = field(default_factory=list)
    stuck: dict[str, int] = field(default_factory=dict)
    """Batch -> number of its stuck actions."""
    quotas: dict[str, QuotaBacklog] = field(default_factory=dict)
    """Quota -> what waits for it, for quotas that are held or waited for."""


def survey(cluster: ClusterState, now: float = 0.0) -> Backlog:
    """Return the present backlog. O(pools + stuck actions); O(waiting actions) if a pool has work and no nodes. For
    quotas: `WaitingAmounts.survey`.

    An action that becomes stuck after its arrival (because nodes have left) is reported when its turn comes near.
    """
    waiting = {pool.name: sum(lane.waiting for lane in pool.all_lanes()) for pool in cluster.queues.pools.values()}
    sorts: defaultdict[str, Counter[tuple[str, Units, tuple[tuple[str, float], ...], str]]] = defaultdict(Counter)
    batches: Counter[str] = Counter()
    stuck = Counter(
        (
            action.work.pool,
            _kind(action.work, _begun(action)),
            tuple(action.needs.items()),
            tuple(action.work.quotas.items()),
            why_never(cluster.quotas, action.amounts) or why_unserved(cluster, action),
            action.request.batch,
        )
        for action in stuck_actions(cluster)
    )
    for (name, kind, units, quotas, reason, batch), count in stuck.items():
        sorts[name][kind, units, quotas, reason] += count
        if batch:
            batches[batch] += count
    pools = [
        PoolBacklog(
            name,
            count,
            [
                StuckWork(kind, dict(units), n, dict(quotas), reason)
                for (kind, units, quotas, reason), n in _most(sorts[name])
            ],
            cluster.queues.pools[name].lanes[BEGINS].waiting if BEGINS in cluster.queues.pools[name].lanes else 0,
            why_held_up(cluster, cluster.queues.pools[name]),
        )
        for name, count in _most(Counter(waiting))
        if count
    ]
    return Backlog(pools, dict(_most(batches)), cluster.queues.waiting_amounts.survey(cluster.quotas, now))


def _most(counted: Counter[T]) -> list[tuple[T, int]]:
    return counted.most_common(MOST_REPORTED)


def stuck_actions(cluster: ClusterState) -> Iterator[ActionState]:
    """Yield the actions that are known to be stuck, pool by pool. Cost: see `survey`."""
    for pool in cluster.queues.pools.values():
        for lane in pool.all_lanes():
            for action_id in lane.stuck:
                yield cluster.queues.queued[action_id]
    deserted = {pool.name for pool in cluster.queues.pools.values() if not cluster.nodes.of(pool)}
    if deserted:
        for action in cluster.queues.queued.values():
            if action.work.pool in deserted and not (action.lane and action.request.id in action.lane.stuck):
                yield action


def _begun(action: ActionState) -> EnvironmentNeed | None:
    """Environment that it would begin."""
    return action.request.need if action.begins else None


def _kind(work: Work, begun: EnvironmentNeed | None) -> str:
    """Everything a node has to offer for it: `env.bash` and, if it begins an environment, `runtime.docker`."""
    kind = f"{work.kind} by the model service {work.service!r}" if work.service else work.kind
    return kind if begun is None else f"{kind} and {begun.kind}"


def lacking(kind: str, units: Mapping[str, int], pool: str) -> str:
    """Text that names what the mesh lacks for such work."""
    amounts = ", ".join(f"{name}={count}" for name, count in units.items())
    return f"no node of class {pool.partition('@')[2]!r} offers {kind}" + (f" with {amounts}" if amounts else "")


def cause_of(stuck: StuckWork, pool: str) -> str:
    """Text that names why such work is stuck in a pool."""
    return stuck.reason or lacking(stuck.kind, stuck.units, pool)


def stuck_text(cluster: ClusterState, action: ActionState) -> str:
    """Reason why a stuck action cannot run at present: quotas cannot give what it needs, or no node can."""
    if reason := why_never(cluster.quotas, action.amounts):
        return f"{reason}; it waits until its budget ends"
    if reason := why_unserved(cluster, action):
        return f"{reason}; it waits for a node that can until its budget ends"
    lacks = lacking(_kind(action.work, _begun(action)), action.needs, action.work.pool)
    return f"{lacks} now; it waits for one until its budget ends"


def why_held_up(cluster: ClusterState, pool: Pool) -> str:
    """Reason why the pool's next environment does not begin now; empty if nothing waits or no node could make it."""
    lane = pool.lanes.get(BEGINS)
    head = lane.queue.head() if lane is not None else None
    if head is None:
        return ""
    action = cluster.queues.queued[head]
    nodes = [node for node in cluster.nodes.of(pool, lane) if node.ready and action.could_run_on(node)]
    short = [name for name, count in action.needs.items() if all(node.free(name) < count for node in nodes)]
    if not nodes:
        return ""
    reasons = (nodes[0].specs.get(name, PLAIN).shortage or f"no {name} are free" for name in short)
    return " and ".join(reasons) or "no node has all it needs free"


def upstream_failure(action: ActionState) -> str:
    """Return the last failure of the external service that a queued action calls, if its newest attempt ended with it
    and another one may begin; else empty.
    """
    may_begin = action.state == "queued" and action.lane is not None and action.request.id not in action.lane.stuck
    return action.postponed if may_begin and action.failed_calls is not None else ""


def why_it_waited(cluster: ClusterState, action: ActionState) -> str:
    """Reason why an action did not begin before its deadline."""
    work, lane = action.work, action.lane
    if failure := upstream_failure(action):
        return f"{failure}; its budget ended before the next attempt"
    if action.state == "parked":
        return "its deadline came while it was parked"
    if action.state == "resuming":
        return f"its deadline came while it was parked and waited for {work.pool} to continue"
    if action.state != "queued" and not action.prefetched:
        return "its deadline came while it ran"
    if lane is not None and action.request.id in lane.behind:
        return "its deadline came while it waited for an earlier action of its trajectory"
    if action.postponed and action.begins:
        return f"its deadline came while its environment could not be made: {action.postponed}"
    if action.ready_s:  # its node has seen its deadline before the leader
        return action.postponed
    if action.postponed and work.service:
        return f"its deadline came while {work.service!r} could not serve it: {action.postponed}"
    if lane is not None and lane.node and lane.node not in cluster.nodes.present:
        return f"its deadline came while {lane.node}, where its environment is, was away"
    if action.work.quotas and not cluster.quotas.fits(action.amounts, action.request.deadline_s):
        why = cluster.quotas.brakes.reasons(action.request.deadline_s)
        held_back = next((why[name] for name in action.amounts if name in why), "they were taken")
        lacks = why_never(cluster.quotas, action.amounts) or held_back
        return f"its deadline came while it waited for the quotas {', '.join(action.work.quotas)}: {lacks}"
    if any(action.could_run_on(node) for node in cluster.nodes.of(cluster.queues.pool(work.pool))):
        return f"its deadline came while it waited for {work.pool}"
    return why_unserved(cluster, action) or lacking(_kind(work, _begun(action)), action.needs, work.pool)
