"""Turns between tenants that wait for a quota with weights, in one scheduling round.

Law: an action takes from a quota with weights only if no tenant with a lower virtual time in that quota waits for it
(`quota_shares`). A tenant waits for a quota while an action of it, in any lane, lacks it or waits for its own turn. An
action that has its quotas and its turn, and no node, does not: then others take what is free. Inside a tenant, and for
quotas without weights, the order is that of the lanes.

An action that waits for its turn reserves nothing, and its lane stays awake. Lanes that were held back are served again
in the same round after a grant, or after a tenant that they waited for has left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.quotas import Amounts
from shared.policy.resources.pools import Lane, Pool

MOST_PASSES: Final = 64
"""Passes over lanes that were held back, in one round. What is left waits for the next round, 0.2 s at most."""


@dataclass(slots=True)
class QuotaTurns:
    """Turns of one round. Costs nothing while no quota has weights, else O(tenants of the quota) for each look."""

    cluster: ClusterState
    now: float
    held_back: set[str] = field(default_factory=set)
    """Actions that have their quotas and wait for others' turns."""
    lacking: dict[tuple[tuple[str, float], ...], Amounts] = field(default_factory=dict)
    """Different amounts of actions that lack a quota with weights."""
    _lanes: dict[tuple[str, str], tuple[Pool, Lane]] = field(default_factory=dict)
    """Lanes of actions that were held back since the last pass."""
    _moved: bool = False
    """A turn has ended since the last pass."""
    _passes: int = 0

    def lacks(self, action: ActionState) -> bool:
        """Return whether an action cannot take its quotas now: they are not free, or it is another tenant's turn."""
        quotas, amounts = self.cluster.quotas, action.needed_quotas
        if not amounts:
            return False
        name, tenant, shares = quotas.lacking(amounts, self.now), action.request.tenant, quotas.shares
        if not shares.by_quota:
            return name is not None
        action_id = action.request.id
        self.held_back.discard(action_id)
        if name is not None:
            if name in shares.by_quota:
                shares.wait(name, tenant, action_id)
                self.lacking[tuple(amounts.items())] = amounts
            return True
        for name in shares.among(amounts):
            if self._is_preceded(name, tenant):
                shares.wait(name, tenant, action_id)
                self.held_back.add(action_id)
                if action.lane is not None:
                    pool = self.cluster.queues.pool(action.work.pool)
                    self._lanes[pool.name, action.lane.name] = (pool, action.lane)
                return True
        return False

    def lacks_for_all(self, action: ActionState) -> bool:
        """Return whether the amounts of an action are not free, and would not be for any tenant."""
        quotas = self.cluster.quotas
        return not quotas.shares.by_quota and not quotas.fits(action.needed_quotas, self.now)

    def _is_preceded(self, quota: str, tenant: str) -> bool:
        """Return whether a tenant with a lower virtual time waits for the quota. Those that have left are removed."""
        shares = self.cluster.quotas.shares
        for other, action_id in shares.ahead(quota, tenant):
            if self._waits(quota, action_id):
                return True
            shares.leave(quota, other, action_id)
        return False

    def _waits(self, quota: str, action_id: str) -> bool:
        action = self.cluster.queues.queued.get(action_id)
        if action is None or quota not in action.needed_quotas or action.lane is None:
            return False
        lane = action.lane
        aside = any(action_id in one for one in (lane.stuck, lane.behind, lane.postponed, lane.withdrawn))
        return not aside and bool(self.cluster.nodes.of(self.cluster.queues.pool(action.work.pool), lane))

    def found_no_node(self, action: ActionState) -> None:
        """Note that an action has its quotas and its turn, and no node can start it: it does not wait for quotas."""
        shares = self.cluster.quotas.shares
        for name in shares.among(action.needed_quotas):
            self._moved = shares.leave(name, action.request.tenant, action.request.id) or self._moved

    def granted(self, amounts: Iterable[str]) -> None:
        """Note a grant: turns have moved if it takes from a quota with weights."""
        by_quota = self.cluster.quotas.shares.by_quota
        self._moved = self._moved or (bool(by_quota) and any(name in by_quota for name in amounts))

    def next_pass(self) -> list[tuple[Pool, Lane]]:
        """Return the lanes to serve again: those that were held back, if a turn has ended since."""
        asleep = self.cluster.queues.lanes.asleep
        lanes = [one for key, one in self._lanes.items() if one[1].queue and key not in asleep]
        if not (lanes and self._moved) or self._passes >= MOST_PASSES:
            return []
        self._passes += 1
        self._moved = False
        self._lanes.clear()
        return lanes

    def next_wake_s(self, blocked: Iterable[ActionState]) -> float:
        """Return when the quotas of one of these heads, or of work that is asleep, are refilled next; infinity: of none
        is.
        """
        quotas = self.cluster.quotas
        if not quotas.limits:
            return math.inf
        needs = [head.needed_quotas for head in blocked if head.state == "queued" and head.needed_quotas]
        times = [quotas.refilled_at(amounts, self.now) for amounts in (*needs, *self.lacking.values())]
        asleep_s = self.cluster.queues.lanes.waits.next_refill_s(quotas, self.now)
        return min([asleep_s, *(at_s for at_s in times if at_s > self.now)])
