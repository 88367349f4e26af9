"""More units for what scales: ARL-Tangram's Algorithm 1 at the end of each round of grants (§4.2), node by node.

A round grants everything at its fewest units, in order: those are the candidates. Before a grant leaves, each node's
free units are arranged among its candidates that scale, and the last ones are evicted where their units are worth more
to those before them. Laws:
  - eviction never changes the order: what is evicted goes back to its place in the queue, nothing that was granted
    there in this round came after it, and the first candidate stays; so it is the head when units are free next;
  - growth takes only units that the node owns and nobody was granted;
  - what does not scale, or whose duration nobody knows, keeps the fewest and is looked at no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.elastic.scheduling import LOOKED_AT, Scalable, allot, enough
from shared.policy.model.formulation import Command, Grant
from shared.policy.resources.ledger import Node

MOST_BEYOND: Final = 1024
"""Waiting actions of a node that count at all, beside those that are looked at."""


class Fresh(NamedTuple):
    """A grant of this round."""

    at: int
    """Its place among the commands."""
    action_state: ActionState
    node: Node
    charged_s: float
    """Unit-seconds its tenant was charged."""
    was_head: bool
    """It was its tenant's turn, not passing a head that must wait."""


def units_worth_waiting_for(
    cluster: ClusterState, action_state: ActionState, free: int, busy_s: NDArray[np.float64]
) -> int:
    """For how many units of a node an action that scales had best wait; if they are free it need not wait.

    Args:
        floor: what is known of durations.
        life: the action.
        free: units that are free there.
        busy_s: of each other unit, seconds until it is predicted free.
    """
    scaled = cluster.scaled(action_state)
    return action_state.pool_units if scaled is None else enough(scaled, free, busy_s)


def grant_elastic_units(
    cluster: ClusterState, now: float, commands: list[Command], fresh: Sequence[Fresh]
) -> list[Command]:
    """Arrange each node's free units among the grants of this round. Returns the commands that are left."""
    if cluster.elastic.rule is None:
        return commands
    places: dict[tuple[str, str], list[Fresh]] = {}
    for one in fresh:
        places.setdefault((one.node.name, one.action_state.resource), []).append(one)
    evicted: list[Fresh] = []
    for granted in places.values():
        evicted += _arrange(cluster, now, commands, granted)
    if not evicted:
        return commands
    for one in reversed(evicted):  # the turn is given back to the first of them last
        _take_back(cluster, one)
    gone = {one.at for one in evicted}
    return [command for at, command in enumerate(commands) if at not in gone]


def _arrange(cluster: ClusterState, now: float, commands: list[Command], granted: Sequence[Fresh]) -> list[Fresh]:
    """One node's round. Returns what is evicted, and sets the units of the others."""
    elastic, node, resource = cluster.elastic, granted[0].node, granted[0].action_state.resource
    known = [(one, cluster.scaled(one.action_state)) for one in granted]
    candidates = [(one, scaled) for one, scaled in known if scaled is not None]
    if not candidates or elastic.rule is None:
        return []
    behind_rigid = next((at for at, (_, scaled) in enumerate(reversed(known)) if scaled is None), len(known))
    fewest = sum(one.action_state.pool_units for one, _ in candidates)
    free = node.free(resource) + sum(one.action_state.units[resource] for one, _ in candidates)
    if free <= fewest and len(candidates) < 2:
        return []
    units = allot(
        [scaled for _, scaled in candidates],
        free,
        _waiting(cluster, node, granted[0].action_state),
        busy(cluster, now, node, resource, {one.action_state.request.id for one, _ in candidates}),
        evictable=min(len(candidates) - 1, behind_rigid),
        depth=elastic.depth,
        rule=elastic.rule,
    )
    for (one, _), amount in zip(candidates, units, strict=False):
        if amount != one.action_state.units[resource]:
            _grow(cluster, now, commands, one, amount)
    return [one for one, _ in candidates[len(units) :]]


def _grow(cluster: ClusterState, now: float, commands: list[Command], one: Fresh, amount: int) -> None:
    action_state, grant = one.action_state, commands[one.at]
    one.node.take({action_state.resource: amount - action_state.units[action_state.resource]})
    action_state.units = {**action_state.units, action_state.resource: amount}
    cluster.ahead.lasts(action_state)
    action_state.expected_s = cluster.expect(action_state, amount)
    action_state.expected_end_s = now + action_state.expected_s
    assert isinstance(grant, Grant), f"{grant} is no grant"
    commands[one.at] = grant._replace(units=action_state.units)


def _take_back(cluster: ClusterState, one: Fresh) -> None:
    """As if it had not been granted. It waits at its old place."""
    action_state, need = one.action_state, one.action_state.request.need
    placement = cluster.trajectories.placements.get(need.trajectory) if need is not None else None
    cluster.release(action_state)
    action_state.attempt -= 1
    action_state.ungranted()
    if need is not None and placement is not None and placement.serial == action_state.serial:
        cluster.move_out(need.trajectory)
    cluster.requeue(action_state)
    if action_state.lane is not None:
        action_state.lane.queue.refund(action_state.request.tenant, one.charged_s, turn=one.was_head)


def busy(cluster: ClusterState, now: float, node: Node, resource: str, but: set[str]) -> NDArray[np.float64]:
    """For every unit that is taken, seconds until it is predicted free; without those of the candidates.

    What is overdue is taken to last for as long again: what has outlasted its kind does not end in a moment, and who
    waited for that would leave free units idle meanwhile.
    """
    held = cluster.granted.get(node.name, {})
    action_states = [action_state for name, action_state in held.items() if action_state.booked and name not in but]
    ends = [action_state.expected_end_s for action_state in action_states]
    units = [action_state.units.get(resource, 0) for action_state in action_states]
    ends += [stray.since_s for stray in node.orphans.values()]
    units += [stray.units.get(resource, 0) for stray in node.orphans.values()]
    return np.abs(np.repeat(np.array(ends, np.float64), units) - now)


def _waiting(cluster: ClusterState, node: Node, like: ActionState) -> list[Scalable]:
    """What waits for this node, in order: all that is bound to it, and its part of what any node may take.

    The first `LOOKED_AT` are who they are: those at the front stand for its part of all. The
    rest, `MOST_BEYOND` at most, counts with the mean of all that waits. O(`LOOKED_AT`), however much waits.
    """
    pool = cluster.pool(like.work.pool)
    parts, count = len(cluster.nodes_of(pool)), 0
    lanes: list[list[ActionState]] = []
    for lane in pool.all_lanes():
        if lane.queue and lane.node in ("", node.name):
            mine = len(lane.queue) if lane.node else -(-len(lane.queue) // parts)
            count += mine
            lanes.append([cluster.queued[name] for name in islice(lane.queue, min(mine, LOOKED_AT))])
    if not lanes:
        return []
    waiting = lanes[0]
    if len(lanes) > 1:
        waiting = list(islice(merge(*lanes, key=attrgetter("key")), LOOKED_AT))
    found = [_estimate(cluster, action_state) for action_state in waiting]
    beyond = min(count - len(found), MOST_BEYOND)
    if beyond > 0:
        total = sum(lane.waiting for lane in pool.all_lanes())
        found += [Scalable((1,), np.array([pool.queued_s / total]))] * beyond
    return found


def _estimate(cluster: ClusterState, action_state: ActionState) -> Scalable:
    return cluster.scaled(action_state) or _rigid(cluster, action_state)


def _rigid(cluster: ClusterState, action_state: ActionState) -> Scalable:
    """What does not scale, in an estimate. One of its amount; one that takes no units waits for none."""
    if action_state.scalable is None:
        action_state.scalable = Scalable((max(1, action_state.pool_units),), np.array([cluster.expect(action_state)]))
    return action_state.scalable
