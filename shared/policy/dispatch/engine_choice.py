"""Choice of an engine for elastic work of a model service: degree, node and chunk (ARL-Tangram §4.2, §5.3).

Each degree of a service is an engine of its own, so a degree costs more than its duration: a restore, if no free chunk
holds the service at that degree, and before it the evictions of what is in its way. Both are `restore` here. Law: an
action gets the place with the least increase of the sum of ACT,

    restore + duration + price * GPUs * (restore / waiting + duration / slots)

The second part is what the other actions lose. `price` is the delay that a GPU-second causes them
(`elastic.scheduling.price`; under a backlog, waiting actions for each GPU). The `waiting` actions of the service share
a restore, and the `slots` of an engine share its duration. Two places are in the future; if one of them costs less,
the action waits:

    wait + duration * (1 + price * GPUs / slots)    the next slot of a busy engine: a restore would end later
    as above, after a drain                         a smaller engine instead of joining a busy one, under a backlog

What waits reserves nothing, and each slot counts for one waiting action of the round, in order. A wait ends: each end
of an action of the engine is a slot, an engine that nothing joins becomes free, and a predicted end that is overdue
moves away by as much as it is overdue, until a restore is cheaper. This is a greedy rule, not the DP of Algorithm 3;
tests/shared/policy/dispatch/test_engine_choice.py compares it with brute force.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.node_choice import places
from shared.policy.elastic.scheduling import Scalable, price
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool
from shared.policy.resources.resource import Resource


class EnginePlace(NamedTuple):
    """A place for an action, with its cost first."""

    cost_s: float
    rank: tuple[float, ...]
    """Order among equal costs: `Resource.rank`."""
    node_name: str
    units: int
    node: Node


@dataclass(slots=True)
class EngineChoice:
    """Choices of one scheduling round."""

    cluster: ClusterState
    now: float
    waiting: set[str] = field(default_factory=set)
    """Actions that wait for a slot of a busy engine."""
    insisting: str = ""
    """Action that waits no longer."""
    _slots: dict[tuple[str, str], list[tuple[float, int, int]]] = field(default_factory=dict)
    """(Pool, service) -> list of (seconds until a busy engine has a slot, its degree)."""

    def places(self, pool: Pool, lane: Lane, action: ActionState) -> Iterator[Node]:
        """Yield the nodes for an action, the best first, with `action.units` set to the degree there. None if it does
        better to wait. O(nodes * degrees).
        """
        scaled = self.cluster.durations.scalable(action)
        if scaled is None or self.cluster.elastic.rule is None:
            yield from places(self.cluster, pool, lane, action, self.now)
            return
        nodes = self.cluster.nodes.of(pool, lane)
        each = self._price(pool, nodes)
        best = self._best(nodes, nodes, action, scaled, each)
        if best is None:
            return
        if action.request.id != self.insisting and self._waits(nodes, action, scaled, each, best):
            self.waiting.add(action.request.id)
            return
        action.units = {**action.work.units, action.resource: best.units}
        yield best.node
        others = [self._best([node], nodes, action, scaled, each) for node in nodes if node is not best.node]
        for one in sorted(one for one in others if one is not None):
            action.units = {**action.work.units, action.resource: one.units}
            yield one.node

    def _price(self, pool: Pool, nodes: list[Node]) -> float:
        owned = sum(node.limit(pool.resource) for node in nodes)
        busy = sum(node.taken(pool.resource) for node in nodes)
        owned = max(1, owned)
        return max(price(min(busy, owned), owned), pool.queued / owned)

    def _best(
        self, among: list[Node], nodes: list[Node], action: ActionState, scaled: Scalable, each: float
    ) -> EnginePlace | None:
        """Return the best place among some of the nodes where the action could start now.

        Evictions only add to a cost, so they are computed only where the rest is no more than the least cost so far.
        """
        waiting, use, lasts_s = self._waiting(action), action.use(self.now), scaled.durations_s.tolist()
        found: list[tuple[float, int, Node, Resource, int, bool]] = []
        for node in among:
            resource = node.resources.get(action.resource)
            if resource is None or not node.accepts(action.request.id, action.work.kind):
                continue
            for units, last_s in zip(scaled.amounts, lasts_s, strict=True):
                place = resource.place(units, use)
                if place is None:
                    continue
                joins, restore_s, slots = place
                share = slots if joins else max(1, min(waiting, slots))
                cost_s = restore_s + last_s + each * units * (restore_s / waiting + last_s / share)
                found.append((cost_s, len(found), node, resource, units, joins))
        found.sort()
        best: EnginePlace | None = None
        for cost_s, _, node, resource, units, joins in found:
            if best is not None and cost_s > best.cost_s:
                break
            if evict_s := resource.evict_s(units, use):
                cost_s += evict_s * (1.0 + each * units / waiting)  # the whole cost
            if joins and cost_s > self._drained(resource, nodes, action, scaled, units, each):
                continue
            one = EnginePlace(cost_s, resource.rank(units, use) or (), node.name, units, node)
            if best is None or one[:4] < best[:4]:
                best = one
        return best

    def _waiting(self, action: ActionState) -> int:
        return self.cluster.queues.pool(action.work.pool).services.get(action.work.service, 1) or 1

    def _drained(
        self, resource: Resource, nodes: list[Node], action: ActionState, scaled: Scalable, joined: int, each: float
    ) -> float:
        """Return the cost if the action joins no engine of `joined` GPUs: it drains, and a smaller one is restored."""
        ends = [one for one in self._slots_of(nodes, action) if one[1] == joined]
        drain_s = max((until_s for until_s, _, _ in ends), default=0.0)
        slots = max((slots for _, _, slots in ends), default=1)
        waiting = self._waiting(action)
        share, cost_s = max(1, min(waiting, slots)), math.inf
        for units, last_s in zip(scaled.amounts, scaled.durations_s.tolist(), strict=True):
            if units < joined:
                restore_s = resource.exchange_s(units, joined, action.use())
                gpu_s = (drain_s * joined + restore_s * units) / waiting + last_s * units / share
                cost_s = min(cost_s, drain_s + restore_s + last_s + each * gpu_s)
        return cost_s

    def _slots_of(self, nodes: list[Node], action: ActionState) -> list[tuple[float, int, int]]:
        """Slots of a service's busy engines, computed once in a round."""
        key = (action.work.pool, action.work.service)
        if key not in self._slots:
            self._slots[key] = self._busy(nodes, action)
        return self._slots[key]

    def _waits(self, nodes: list[Node], action: ActionState, scaled: Scalable, each: float, best: EnginePlace) -> bool:
        """Return whether a busy engine has a slot so soon that the action ends earlier there; then the slot is its."""
        slots = self._slots_of(nodes, action)
        least_s, at, end = math.inf, -1, 0.0
        for index, (until_s, units, concurrency) in enumerate(slots):
            if units not in scaled.amounts:
                continue
            last_s = float(scaled.durations_s[scaled.amounts.index(units)])
            cost_s = until_s + last_s * (1.0 + each * units / concurrency)
            if cost_s < least_s:
                least_s, at, end = cost_s, index, until_s + last_s
        if least_s >= best.cost_s:
            return False
        slots[at] = (end, *slots[at][1:])
        return True

    def _busy(self, nodes: list[Node], action: ActionState) -> list[tuple[float, int, int]]:
        """Slots of the service's busy engines: (seconds until the action in it ends, degree, slots of the engine)."""
        found = []
        for node in nodes:
            resource = node.resources.get(action.resource)
            if resource is None:
                continue
            granted = self.cluster.granted.get(node.name, {})
            for units, concurrency, holders in resource.engines(action.work.service):
                for name in holders:
                    held = granted.get(name)
                    if held is not None:
                        found.append((abs(held.expected_end_s - self.now), units, concurrency))
        return found
