"""Elastic grants: ARL-Tangram's Algorithm 1 at the end of each scheduling round (§4.2), node by node.

A round grants everything at its fewest units, in order; these are the candidates. Before the grants are sent, each
node's free units are arranged among its elastic candidates. The last ones are evicted if their units are worth more to
those before them. Laws:
  - eviction never changes the order. An evicted action returns to its place in the queue, nothing that was granted
    there in this round came after it, and the first candidate stays. So it is the head when units are free next;
  - elastic grants take only units that the node owns and that are not granted;
  - work that is not elastic, or has no known duration, keeps its fewest units and is not considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.elastic.scheduling import LOOKED_AT, Scalable, allot
from shared.policy.model.formulation import Command, Grant
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import BEGINS, bound_lane
from shared.policy.resources.resource import Resource, Use

MOST_BEYOND: Final = 1024
"""Most waiting actions of a node that count beyond those that are looked at one by one."""


class NewGrant(NamedTuple):
    """A grant of this round."""

    at: int
    """Its index among the commands."""
    action: ActionState
    node: Node
    charged_s: float
    """Unit-seconds its tenant was charged."""
    was_head: bool
    """It was granted as its tenant's head in turn, not by backfill."""
    resumed: bool = False
    """It was parked and continues with the units that it had."""


def grant_elastic_units(
    cluster: ClusterState, now: float, commands: list[Command], new_grants: Sequence[NewGrant]
) -> list[Command]:
    """Arrange each node's free units among the grants of this round. Returns the remaining commands."""
    if cluster.elastic.rule is None:
        return commands
    places: dict[tuple[str, str], list[NewGrant]] = {}
    for one in new_grants:
        places.setdefault((one.node.name, one.action.resource), []).append(one)
    evicted: list[NewGrant] = []
    for granted in places.values():
        evicted += _arrange(cluster, now, commands, granted)
    if not evicted:
        return commands
    for one in reversed(evicted):  # in reverse, so that the first of them gets its turn back last
        _undo(cluster, one)
    gone = {one.at for one in evicted}
    return [command for at, command in enumerate(commands) if at not in gone]


def _arrange(cluster: ClusterState, now: float, commands: list[Command], granted: Sequence[NewGrant]) -> list[NewGrant]:
    """Arrange one node's units. Returns the evicted grants and sets the units of the others."""
    elastic, node, resource = cluster.elastic, granted[0].node, granted[0].action.resource
    units_of = node.resources[resource]
    known = [
        (
            one,
            None
            if _is_fixed(one, units_of)
            else possible(cluster.durations.scalable(one.action), units_of, one.action),
        )
        for one in granted
    ]
    candidates = [(one, scaled) for one, scaled in known if scaled is not None]
    if not candidates or elastic.rule is None:
        return []
    behind_rigid = next((at for at, (_, scaled) in enumerate(reversed(known)) if scaled is None), len(known))
    fewest = sum(one.action.pool_units for one, _ in candidates)
    before = {one.action.request.id: one.action.units[resource] for one, _ in candidates}
    states = node.resources[resource].states(before)
    if states.units <= fewest and len(candidates) < 2:
        return []
    units = allot(
        [scaled for _, scaled in candidates],
        states,
        _waiting(cluster, node, granted[0].action),
        seconds_until(predicted_ends(cluster, node, resource, {one.action.request.id for one, _ in candidates}), now),
        evictable=min(len(candidates) - 1, behind_rigid),
        depth=elastic.depth,
        rule=elastic.rule,
    )
    kept, evicted = [one for one, _ in candidates[: len(units)]], [one for one, _ in candidates[len(units) :]]
    after = {one.action.request.id: amount for one, amount in zip(kept, units, strict=True)}
    if after != before:
        uses = {one.action.request.id: _use(cluster, now, one.action, after) for one, _ in candidates}
        node.rearrange(resource, before, dict(reversed(after.items())), uses)  # the last first, as in the DP
        if units_of.spec.is_structured and not all(map(units_of.numbers, after)):
            node.rearrange(resource, after, before, uses)  # the DP does not know which chunk is usable for whom
            return []
        for one in evicted:
            one.action.units = {**one.action.units, resource: 0}
        for one, amount in zip(kept, units, strict=True):
            if amount != one.action.units[resource]:
                _grow(cluster, now, commands, one, amount)
        for one in kept:
            _renumber(commands, one, units_of.numbers(one.action.request.id))
    return evicted


def possible(scaled: Scalable | None, resource: Resource, action: ActionState) -> Scalable | None:
    """Return an action without the amounts that this resource can never give it; None if these are the fewest."""
    if scaled is None or not resource.spec.is_structured:
        return scaled
    able = [at for at, amount in enumerate(scaled.amounts) if resource.could_ever(amount, action.use())]
    if not able or able[0]:
        return None
    return Scalable(tuple(scaled.amounts[at] for at in able), scaled.durations_s[able])


def _is_fixed(one: NewGrant, resource: Resource) -> bool:
    """Return whether the units of a grant must stay: it continues, or it shares a chunk with others."""
    return one.resumed or bool(one.action.work.service) or one.action.request.id in resource.sharing


def _use(cluster: ClusterState, now: float, action: ActionState, after: Mapping[str, int]) -> Use:
    lasts_s = cluster.durations.expect(action, after.get(action.request.id))
    return action.use(now)._replace(now=now, lasts_s=lasts_s)


def _renumber(commands: list[Command], one: NewGrant, numbers: tuple[int, ...]) -> None:
    grant = commands[one.at]
    if isinstance(grant, Grant) and grant.numbers != numbers:
        commands[one.at] = grant._replace(numbers=numbers)


def _grow(cluster: ClusterState, now: float, commands: list[Command], one: NewGrant, amount: int) -> None:
    """Set the units of a grant that has them already."""
    action, grant = one.action, commands[one.at]
    action.units = {**action.units, action.resource: amount}
    cluster.prefetch.uncount_short(action)
    action.expected_s = cluster.durations.expect(action, amount)
    action.expected_end_s = now + action.expected_s
    assert isinstance(grant, Grant), f"{grant} is no grant"
    commands[one.at] = grant._replace(units=action.units)


def _undo(cluster: ClusterState, one: NewGrant) -> None:
    """Undo a grant of this round. The action waits at its old place."""
    action, need = one.action, one.action.request.need
    placement = cluster.environments.placements.get(need.trajectory) if need is not None else None
    if action.work.quotas:
        cluster.quotas.undo(action.hold_key)
    cluster.release(action)
    action.attempt -= 1
    action.undo_grant()
    if need is not None and placement is not None and placement.serial == action.serial:
        cluster.remove_environment(need.trajectory)
    cluster.queues.requeue(action)
    if action.lane is not None:
        action.lane.queue.refund(action.request.tenant, one.charged_s, turn=one.was_head)


def predicted_ends(cluster: ClusterState, node: Node, resource: str, but: set[str]) -> list[float]:
    """Absolute seconds at which each taken unit is predicted free, without the units of the candidates."""
    ends_s: list[float] = []
    shared: dict[tuple[int, ...], float] = {}
    """Numbers of shared units -> last end of those that share them."""
    for name, action in cluster.granted.get(node.name, {}).items():
        if not action.allocated or name in but:
            continue
        if numbers := node.numbers(resource, name):
            shared[numbers] = max(shared.get(numbers, action.expected_end_s), action.expected_end_s)
        else:
            ends_s += [action.expected_end_s] * action.units.get(resource, 0)
    for numbers, end_s in shared.items():
        ends_s += [end_s] * len(numbers)
    for orphan in node.orphans.values():
        ends_s += [orphan.since_s] * orphan.units.get(resource, 0)
    return ends_s


def seconds_until(ends_s: Iterable[float], now: float) -> list[float]:
    """Seconds until each of these predicted ends.

    An overdue action is assumed to run for as long as it is already overdue. It will probably not end at once, and
    waiting for it would leave free units idle.
    """
    return [abs(end_s - now) for end_s in ends_s]


def _waiting(cluster: ClusterState, node: Node, like: ActionState) -> list[Scalable]:
    """Waiting actions of this node, in order: all that are bound to it, and its part of those that any node may take.

    The first `LOOKED_AT` are listed one by one; the front of each lane represents the node's part of it. The rest,
    `MOST_BEYOND` at most, count with the mean of all that waits. O(`LOOKED_AT`), however much waits.
    """
    pool = cluster.queues.pool(like.work.pool)
    parts, count = len(cluster.nodes.of(pool)), 0
    lanes: list[list[ActionState]] = []
    for lane in (pool, pool.lanes.get(BEGINS), pool.lanes.get(bound_lane(node.name))):
        if lane is not None and lane.queue:
            mine = len(lane.queue) if lane.node else -(-len(lane.queue) // parts)
            count += mine
            lanes.append([cluster.queues.queued[name] for name in islice(lane.queue, min(mine, LOOKED_AT))])
    if not lanes:
        return []
    waiting = lanes[0]
    if len(lanes) > 1:
        waiting = list(islice(merge(*lanes, key=attrgetter("key")), LOOKED_AT))
    found = [_estimate(cluster, action) for action in waiting]
    beyond = min(count - len(found), MOST_BEYOND)
    if beyond > 0:
        found += [Scalable((1,), np.array([pool.queued_s / pool.queued]))] * beyond
    return found


def _estimate(cluster: ClusterState, action: ActionState) -> Scalable:
    return cluster.durations.scalable(action) or _rigid(cluster, action)


def _rigid(cluster: ClusterState, action: ActionState) -> Scalable:
    """Estimate of an action that is not elastic: one amount. An action without units counts as one that takes one
    unit.
    """
    if action.scalable is None:
        action.scalable = Scalable((max(1, action.pool_units),), np.array([cluster.durations.expect(action)]))
    return action.scalable
