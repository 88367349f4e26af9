"""Waits of elastic work for more units: it does not start on a node where it does better to wait.

Elastic work that starts on the last free unit keeps one unit to its end, though many might be free soon. If it should
wait, it is treated as if it needed that many units: it gets a reservation, work that ends earlier may use the units,
and all elastic work behind it waits too.

Law: what is known of a wait is what would be computed now. While a node does not change, starting there becomes later,
and no wait does, until a unit is predicted free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.elastic_grants import NewGrant, possible, predicted_ends, seconds_until
from shared.policy.elastic.scheduling import KnownWait, enough
from shared.policy.resources.ledger import Node

MOST_KNOWN: Final = 8
"""Most waits that are known of one node."""


@dataclass(slots=True)
class ElasticWaits:
    """Waits of one scheduling round."""

    cluster: ClusterState
    now: float
    new_grants: list[NewGrant]
    """Grants of the round."""
    nodes: set[str] = field(default_factory=set)
    """Nodes for whose units elastic work waits: the first action that does better by waiting decides for all behind
    it."""
    _ends_s: dict[str, list[float]] = field(default_factory=dict)
    """Node -> predicted ends of the units that were taken before this round."""

    def too_early(self, node: Node, action: ActionState) -> bool:
        """Return whether an action does better to wait for more of this node's units; then `action.units` are those.

        If enough are free, that many are held for it in this round. Otherwise the next action would take them before
        `grant_elastic_units` can grant them.
        """
        free, wanted = node.free(action.resource), action.work.amounts[-1]
        elastic = self.cluster.elastic
        if free >= wanted or elastic.rule is None or not elastic.waits_for_units:
            return False
        wanted = self._worth_waiting_for(node, action, free)
        action.units = {**action.work.units, action.resource: wanted}
        waits = not node.has_free({action.resource: wanted})
        if waits:
            self.nodes.add(node.name)
        return waits

    def _worth_waiting_for(self, node: Node, action: ActionState, free: int) -> int:
        """Return the units of a node that an action should wait for. If they are free, it need not wait."""
        now, known = self.now, self.cluster.elastic_waits
        durations = possible(self.cluster.durations.scalable(action), node.resources[action.resource], action)
        if durations is None:
            return action.pool_units
        name, unchanged = action.request.id, node.name not in self.cluster.nodes.rankings.changed
        waits = known.setdefault(node.name, {}) if unchanged else {}
        wait = waits.get(name)
        if wait is not None and wait.durations is durations and now <= wait.until_s:
            return wait.units
        ends_s = self._ends_s.get(node.name)
        if ends_s is None:
            granted = {one.action.request.id for one in self.new_grants if one.node is node}
            ends_s = self._ends_s[node.name] = predicted_ends(self.cluster, node, action.resource, granted)
        units = enough(durations, free, seconds_until(ends_s, now))
        if units > free:
            if len(waits) >= MOST_KNOWN:
                waits.clear()
            waits[name] = KnownWait(durations, units, min(ends_s, default=math.inf))
        return units
