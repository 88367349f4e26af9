"""Heads that wait for units or quotas, with their reservations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.node_choice import reserve_node
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool


@dataclass(slots=True)
class Blocked:
    """Head that waits for units, with its reservation, which is computed on first use."""

    head: ActionState
    pool: Pool
    lane: Lane
    node: Node | None = None
    """Node where its units are predicted to be free together first; None if no ready node will ever have them."""
    until_s: float | None = None
    """Start of the reservation; infinity if it waits for what environments hold. Then no quotas are reserved: the work
    that ends these environments may need them."""

    def forbids(self, cluster: ClusterState, node: Node, action: ActionState, now: float) -> bool:
        """Return whether this work, started there now, would delay the head."""
        if self.until_s is None:
            self.until_s, self.node = reserve_node(cluster, self.pool, self.lane, self.head, now)
            if self.head.needed_quotas:
                self.until_s = max(self.until_s, cluster.quotas.free_at(self.head.needed_quotas, now))
        if (
            self.head.needed_quotas
            and self.until_s < math.inf
            and self._forbids_quotas(cluster, action, now, self.until_s)
        ):
            return True
        if node is not self.node or self.head.needs.keys().isdisjoint(action.needs):
            return False
        if self.head.needed_quotas and node.has_free(_both(self.head.needs, action.needs)):
            return False  # the head waits for its quotas, and its units stay free
        if self.until_s == math.inf:
            return action.begins
        return now + cluster.durations.expect_at_most(action) > self.until_s

    def _forbids_quotas(self, cluster: ClusterState, action: ActionState, now: float, until_s: float) -> bool:
        amounts = action.needed_quotas
        if not amounts:
            return False
        end_s = now + cluster.durations.expect_at_most(action)
        return cluster.quotas.delays(self.head.needed_quotas, until_s, amounts, end_s, now)


def _both(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}
