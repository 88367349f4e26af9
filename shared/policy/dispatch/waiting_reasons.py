"""Reasons why actions wait for more than their turn: they are stuck, parked, held back by a provider or postponed, or
cannot begin their environment.

O(pools + lanes + stuck actions + granted actions + postponed actions), plus O(`MOST_NAMED`). If a pool with waiting
work has no node, or a provider wants no call, O(waiting actions): 11 ms at 100,000. The leader spends at most 1/50 of
its time on this and the backlog together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.backlog import stuck_actions, stuck_text, why_held_up
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.waiting import WaitingReason, WaitingReasons, begins_class, work_class
from shared.policy.resources.pools import BEGINS

MOST_NAMED = 1024
"""Most actions whose reason is reported by name."""
MOST_CLASSES = 1024
"""Most classes of work whose reason is reported, if more actions than `MOST_NAMED` wait."""

Named = tuple[ActionState, WaitingReason]


def waiting_reasons(cluster: ClusterState, now: float) -> WaitingReasons:
    """Return the present reasons: of stuck actions, of parked ones, of those that providers hold back, of those that
    begin environments, and of postponed ones, in this order.

    Beyond `MOST_NAMED` actions, the reasons of stuck ones and of those that begin environments are found by class.
    """
    found = chain(_stuck(cluster), _parked(cluster), _held_back(cluster, now), _held_up(cluster), _postponed(cluster))
    actions: dict[tuple[str, int], WaitingReason] = {}
    for action, reason in found:
        if len(actions) == MOST_NAMED:
            return WaitingReasons(actions, _classes(cluster, now))
        actions.setdefault((action.request.id, action.stage), reason)
    return WaitingReasons(actions)


def _stuck(cluster: ClusterState) -> Iterator[Named]:
    for action in stuck_actions(cluster):
        yield action, WaitingReason("stuck", stuck_text(cluster, action))


def _parked(cluster: ClusterState) -> Iterator[Named]:
    for granted in cluster.granted.values():
        for action in granted.values():
            if action.state == "parked":
                yield action, WaitingReason("parked", "it is parked and waits for something outside the mesh")
            elif action.state == "resuming":
                yield action, WaitingReason("resuming", f"it was parked and waits for {action.work.pool} to continue")


def _held_back(cluster: ClusterState, now: float) -> Iterator[Named]:
    """Queued actions that take a quota whose provider wants no call now."""
    if why := cluster.quotas.brakes.reasons(now):
        for action in cluster.queues.queued.values():
            for quota in action.needed_quotas:
                if quota in why:
                    yield action, WaitingReason("provider", why[quota])
                    break


def _held_up(cluster: ClusterState) -> Iterator[Named]:
    for name, reason in _held_up_pools(cluster):
        lane = cluster.queues.pools[name].lanes[BEGINS]
        for action_id in chain(lane.queue, lane.behind, lane.postponed):
            yield cluster.queues.queued[action_id], reason


def _postponed(cluster: ClusterState) -> Iterator[Named]:
    """Actions whose last attempt asked for a later one. An environment that is not made has a reason of its own."""
    for pool in cluster.queues.pools.values():
        for lane in pool.all_lanes():
            for action_id in lane.postponed:
                action = cluster.queues.queued[action_id]
                if action.request.need is None:
                    yield action, WaitingReason("postponed", action.postponed)


def _held_up_pools(cluster: ClusterState) -> Iterator[tuple[str, WaitingReason]]:
    for pool in cluster.queues.pools.values():
        if why := why_held_up(cluster, pool):
            begins = pool.lanes[BEGINS].waiting
            yield (
                pool.name,
                WaitingReason("held up", f"it waits to begin its environment, with {begins} in {pool.name}: {why}"),
            )


def _classes(cluster: ClusterState, now: float) -> dict[str, WaitingReason]:
    """Reasons by class. Pools whose next environment is held up come first: they are few."""
    classes = {begins_class(name): reason for name, reason in islice(_held_up_pools(cluster), MOST_CLASSES)}
    stuck = ((action, WaitingReason("stuck", stuck_text(cluster, action))) for action in stuck_actions(cluster))
    for action, reason in chain(stuck, _held_back(cluster, now)):
        if len(classes) == MOST_CLASSES:
            break
        classes.setdefault(_class_of(action), reason)
    return classes


def _class_of(action: ActionState) -> str:
    work, need = action.work, action.request.need
    if need is None:
        return work_class(work.pool, work.kind, work.units, work.quotas)
    return work_class(work.pool, work.kind, work.units, work.quotas, need.kind, need.units)
