"""Actions that no present node and no present limit of their quotas will ever let start: they are set aside."""

from __future__ import annotations

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.node_choice import is_possible
from shared.policy.resources.pools import Lane, Pool
from shared.policy.resources.quota_refusals import why_never


def is_stuck(cluster: ClusterState, pool: Pool, lane: Lane, head: ActionState) -> bool:
    """Return whether the head of a lane will never start."""
    if head.work.quotas and why_never(cluster.quotas, head.needed_quotas):
        return True
    if head.request.id == lane.feasible or not cluster.nodes.of(pool, lane):
        return False
    return not is_possible(cluster, pool, lane, head)


def refusal(cluster: ClusterState, action: ActionState) -> str:
    """Return why a new action that was set aside is answered at once; empty: it waits for a node that can take it.

    None is answered while a node has not reported yet what it has.
    """
    lane = action.lane
    if lane is None or action.request.id not in lane.stuck:
        return ""
    ready = all(node.ready for node in cluster.nodes.of(cluster.queues.pool(action.work.pool), lane))
    return cluster.nodes.unusable.why(action.work.service) if ready else ""


def set_aside_stuck(cluster: ClusterState, action: ActionState) -> bool:
    """Set a new action aside if no present node could ever take it. Deep in a queue, this would not be noticed.

    Returns whether the present limits of its quotas are known to let it start, now or later.
    """
    lane = action.lane
    if lane is None or action.request.id in lane.behind:
        return False
    if action.work.quotas and why_never(cluster.quotas, action.amounts):
        cluster.queues.set_stuck(lane, action)
        return False
    pool = cluster.queues.pool(action.work.pool)
    if cluster.nodes.of(pool, lane) and not is_possible(cluster, pool, lane, action):
        cluster.queues.set_stuck(lane, action)
    return True
