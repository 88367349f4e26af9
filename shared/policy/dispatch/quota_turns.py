"""Turns between tenants that wait for quotas, in one scheduling round.

Law: an action takes from a quota only what is not reserved (`turn_reservations`) for tenants with a lower virtual time
in that quota (`quota_shares`) that could use it. A tenant could use it if an action of it, in any lane, waits for this
quota or for its turn, and
  - what else that action needs is free, or is predicted to be free before the asking action ends, as in backfill;
  - in each other quota that it needs, enough is left by such tenants that are ahead of its own;
  - its lane does not sleep for its node.
So a tenant waits only for one that has all its other turns. Virtual times descend along a chain of such tenants, and
no two tenants ever wait for each other. An action that has its quotas and its turn, and no node, does not wait: then
others take what is free, and so they do while it lacks something else for long. Inside a tenant the order is that of
the lanes (test_quota_turns.py).

A tenant waits from the time at which a round has looked at one of its actions, and after a grant with its next one.

An action that waits for its turn reserves no units, and its lane stays awake. Lanes that were held back are served
again in the same round after a grant, or after a tenant that they waited for has left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.turn_reservations import TurnReservations, overdue_until_s, without
from shared.policy.model.quotas import Amounts
from shared.policy.resources.pools import Lane, Pool

MOST_PASSES: Final = 64
"""Passes over lanes that were held back, in one round. What is left waits for the next round, which follows at once."""


@dataclass(slots=True)
class QuotaTurns:
    """Turns of one round. A look costs O(log tenants that wait for the quota), and O(k log k) for k of them that are
    ahead and cannot use it. If these name several quotas: for each, O(tenants that are ahead in those).
    """

    cluster: ClusterState
    now: float
    held_back: set[str] = field(default_factory=set)
    """Actions that have their quotas and wait for others' turns."""
    lacking: dict[tuple[tuple[str, float], ...], Amounts] = field(default_factory=dict)
    """Different amounts of actions that lack a quota for which several tenants wait."""
    _lanes: dict[tuple[str, str], tuple[Pool, Lane]] = field(default_factory=dict)
    """Lanes of actions that were held back since the last pass."""
    _ahead: dict[str, ActionState] = field(default_factory=dict)
    """Actions for whose turns others were held back since the last pass."""
    _lenders: list[tuple[str, str, float]] = field(default_factory=list)
    """Quotas, tenants that precede the action that was looked at last, and what is reserved for them meanwhile: nothing
    if they cannot use their turn now."""
    _moved: bool = False
    """A turn has ended since the last pass."""
    _passes: int = 0
    _is_unfinished: bool = False
    """Another pass was due after the last one."""

    def lacks(self, action: ActionState) -> bool:
        """Return whether an action cannot take its quotas now: they are not free, or it is another tenant's turn."""
        quotas, amounts = self.cluster.quotas, action.needed_quotas
        if not amounts:
            return False
        name, shares = quotas.lacking(amounts, self.now), quotas.shares
        action_id = action.request.id
        self.held_back.discard(action_id)
        self._lenders.clear()
        if name is None:
            contested = shares.contested(amounts, action.request.tenant)
            if not (contested and any(self._is_preceded(quota, action) for quota in contested)):
                return False
            self.held_back.add(action_id)
            if action.lane is not None:
                pool = self.cluster.queues.pool(action.work.pool)
                self._lanes[pool.name, action.lane.name] = (pool, action.lane)
        self._wait(action)
        if name in shares.by_quota and shares.is_contended(name):
            self.lacking[tuple(amounts.items())] = amounts
        return True

    def join(self, action: ActionState) -> None:
        """Let a tenant wait for the quotas of an action that lacks one, as others of the same work do."""
        if action.needed_quotas:
            self._wait(action)

    def lack(self, action: ActionState) -> bool:
        """Return whether the amounts of an action are not free for any tenant."""
        return not self.cluster.quotas.fits(action.needed_quotas, self.now)

    def refuse_all(self, lane: Lane) -> bool:
        """Return whether nothing of a lane can start: its head lacks quotas or its turn, and all others are like it."""
        head = lane.queue.head()
        if lane.alike is None or head is None:
            return False
        return head in self.held_back or self.lack(self.cluster.queues.queued[head])

    def _is_preceded(self, quota: str, action: ActionState) -> bool:
        """Return whether too little of a quota is left for a tenant that is ahead and could use it, if an action takes
        what it needs. Those that have left are removed.
        """
        shares = self.cluster.quotas.shares
        until_s = self.now + self.cluster.durations.expect_at_most(action)
        reserved = self._reservations(quota, action, until_s)
        for tenant, action_id in shares.ahead(quota, action.request.tenant):
            other = self._waiting(quota, action_id)
            if other is None:
                shares.leave(quota, tenant, action_id)
                continue
            kept = 0.0
            if self._can_use(quota, other, until_s):
                if reserved.add(other.needed_quotas):
                    self._ahead[action_id] = other
                    return True
                kept = other.needed_quotas[quota]
            self._lenders.append((quota, tenant, kept))
        return False

    def _reservations(self, quota: str, action: ActionState, until_s: float) -> TurnReservations:
        return TurnReservations(self.cluster.quotas, self.now, quota, action.needed_quotas[quota], until_s)

    def _wait(self, action: ActionState) -> None:
        """Let an action stand for its tenant in each of its quotas. One that could use the quota stays there instead of
        one that could not.
        """
        shares, tenant, action_id = self.cluster.quotas.shares, action.request.tenant, action.request.id
        for quota in shares.among(action.needed_quotas):
            known = shares.waiting(quota, tenant)
            if known == action_id:
                continue
            if known and not self._can_use(quota, action, self.now):
                other = self._waiting(quota, known)
                if other is not None and self._can_use(quota, other, self.now):
                    continue
            shares.wait(quota, tenant, action_id)

    def _waiting(self, quota: str, action_id: str) -> ActionState | None:
        """Return an action if it still waits for the quota, and not only for its node."""
        action = self.cluster.queues.queued.get(action_id)
        if action is None or quota not in action.needed_quotas or action.lane is None:
            return None
        lane, pool = action.lane, self.cluster.queues.pool(action.work.pool)
        if any(action_id in one for one in (lane.stuck, lane.behind, lane.postponed, lane.withdrawn)):
            return None
        sleeper = self.cluster.queues.lanes.asleep.get((pool.name, lane.name))
        if sleeper is not None and not sleeper.lacking:
            return None
        return action if self.cluster.nodes.of(pool, lane) else None

    def _can_use(self, quota: str, action: ActionState, until_s: float) -> bool:
        """Return whether a waiting action lacks nothing but this quota by then, and no turn in another one."""
        if len(action.needed_quotas) == 1:
            return True
        others = without(quota, action.needed_quotas)
        if not self._is_free(others, until_s):
            return False
        return all(self._is_first(other, action, until_s) for other in self.cluster.quotas.shares.among(others))

    def _is_first(self, quota: str, action: ActionState, until_s: float) -> bool:
        """Return whether enough of a quota is left, if an action takes what it needs, for each tenant that is ahead and
        has what else it needs by then.
        """
        reserved = self._reservations(quota, action, until_s)
        for _, action_id in self.cluster.quotas.shares.ahead(quota, action.request.tenant):
            other = self._waiting(quota, action_id)
            if other is None or not self._is_free(without(quota, other.needed_quotas), until_s):
                continue
            if reserved.add(other.needed_quotas):
                return False
        return True

    def _is_free(self, amounts: Amounts, until_s: float) -> bool:
        """Return whether amounts can be taken now, or are predicted to be free by then."""
        quotas, now = self.cluster.quotas, self.now
        if quotas.fits(amounts, now):
            return True
        if until_s <= now or quotas.free_at(amounts, now) > until_s:
            return False
        return overdue_until_s(quotas, amounts, now) <= until_s

    def found_no_node(self, action: ActionState) -> None:
        """Note that an action has its quotas and its turn, and no node can start it: it does not wait for quotas."""
        shares = self.cluster.quotas.shares
        for name in shares.among(action.needed_quotas):
            self._moved = shares.leave(name, action.request.tenant, action.request.id) or self._moved

    def granted(self, action: ActionState, lane: Lane) -> None:
        """Note a grant to the action that was looked at last, after it has left its lane. Its tenant waits on with its
        next action there.
        """
        shares = self.cluster.quotas.shares
        for quota, tenant, kept in self._lenders:
            shares.lend(quota, tenant, kept)
        self._lenders.clear()
        self._moved = True
        tenant = action.request.tenant
        if (name := lane.queue.first_of(tenant)) is not None:
            shares.wait_on(self.cluster.queues.queued[name].needed_quotas, tenant, name)

    def next_pass(self) -> list[tuple[Pool, Lane]]:
        """Return the lanes to serve again: those that were held back, if a turn has ended since."""
        asleep = self.cluster.queues.lanes.asleep
        lanes = [one for key, one in self._lanes.items() if one[1].queue and key not in asleep]
        if lanes and not self._moved:
            self._pass_over_unreached()
        if not (lanes and self._moved):
            return []
        if self._passes >= MOST_PASSES:
            self._is_unfinished = True
            return []
        self._passes += 1
        self._moved = False
        self._ahead.clear()
        self._lanes.clear()
        return lanes

    def _pass_over_unreached(self) -> None:
        """End the precedence of an action that has its quotas and its turn and was not looked at: backfill did not
        reach it, because nodes are full or others precede it.
        """
        for action_id, action in self._ahead.items():
            if action_id not in self.held_back and self.cluster.quotas.fits(action.needed_quotas, self.now):
                self.found_no_node(action)

    def next_wake_s(self, blocked: Iterable[ActionState]) -> float:
        """Return when the quotas of one of these heads, or of work that is asleep, are refilled next; infinity: of none
        is. Now, if this round could not serve all turns.
        """
        if self._is_unfinished:
            return self.now
        quotas = self.cluster.quotas
        if not quotas.limits:
            return math.inf
        needs = [head.needed_quotas for head in blocked if head.state == "queued" and head.needed_quotas]
        times = [quotas.refilled_at(amounts, self.now) for amounts in (*needs, *self.lacking.values())]
        asleep_s = self.cluster.queues.lanes.waits.next_refill_s(quotas, self.now)
        return min([asleep_s, *(at_s for at_s in times if at_s > self.now)])
