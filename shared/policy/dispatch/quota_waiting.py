"""Waiting actions of each quota, counted by tenant while they enter and leave the queues."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.model.quotas import FIRST_ESTIMATE, Amounts
from shared.policy.model.waiting import QuotaBacklog, TenantBacklog
from shared.policy.resources.pools import Pool
from shared.policy.resources.quotas import Quotas

MOST_TENANTS: Final = 64
"""Most tenants that are reported of one quota: those with the most waiting actions."""
MOST_QUOTAS: Final = 1024
"""Most quotas that are reported: those with the most waiting actions."""


@dataclass(slots=True)
class WaitingForQuota:
    """Counts of one quota."""

    tenants: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Tenant -> number of actions, sum of their amounts."""
    amounts: Counter[float] = field(default_factory=Counter)
    """Amount -> number of actions."""
    total: float = 0.0
    """Sum of the amounts."""
    aside: float = 0.0
    """The part of it for which actions wait that are set aside."""


@dataclass(slots=True)
class WaitingAmounts:
    """Actions that wait with quotas: in an order or set aside as stuck. A change is O(quotas of the action)."""

    by_quota: dict[str, WaitingForQuota] = field(default_factory=dict)
    counted: dict[str, Amounts] = field(default_factory=dict)
    """Action -> amounts with which it counts. Estimates change while it waits."""
    aside: set[str] = field(default_factory=set)
    """Those of them that are set aside: no action waits behind them."""

    def add(self, action: ActionState) -> None:
        """Count an action that begins to wait. One that continues after parking has its quotas."""
        amounts = action.needed_quotas
        if amounts:
            self.counted[action.request.id] = amounts
            for name, amount in amounts.items():
                waiting = self.by_quota.get(name)
                if waiting is None:
                    waiting = self.by_quota[name] = WaitingForQuota()
                count, total = waiting.tenants.get(action.request.tenant, (0, 0.0))
                waiting.tenants[action.request.tenant] = (count + 1, total + amount)
                waiting.amounts[amount] += 1
                waiting.total += amount

    def remove(self, action: ActionState) -> None:
        """Uncount an action that has left its queue."""
        if self.aside:
            self.queue_again((action.request.id,))
        tenant = action.request.tenant
        for name, amount in self.counted.pop(action.request.id, {}).items():
            waiting = self.by_quota[name]
            count, total = waiting.tenants.pop(tenant)
            if count > 1:
                waiting.tenants[tenant] = (count - 1, total - amount)
            waiting.amounts[amount] -= 1
            waiting.total -= amount
            if not waiting.amounts[amount]:
                del waiting.amounts[amount]
            if not waiting.tenants:
                del self.by_quota[name]

    def set_stuck(self, action_id: str) -> None:
        """Note that a waiting action is set aside as stuck."""
        if action_id in self.counted:
            self.aside.add(action_id)
            for name, amount in self.counted[action_id].items():
                self.by_quota[name].aside += amount

    def queue_again(self, action_ids: Iterable[str]) -> None:
        """Note that these actions are not set aside any more. O(actions)."""
        for action_id in self.aside.intersection(action_ids):
            self.aside.remove(action_id)
            for name, amount in self.counted[action_id].items():
                self.by_quota[name].aside -= amount

    def sums(self, names: Iterable[str]) -> dict[str, float]:
        """Return the amounts of these quotas that actions in an order wait for."""
        found = {name: self.by_quota[name] for name in names if name in self.by_quota}
        return {name: max(0.0, one.total - one.aside) for name, one in found.items()}

    def survey(self, quotas: Quotas, now: float) -> dict[str, QuotaBacklog]:
        """Return what waits for each quota, and for quotas that are held when they are free next.

        O(quotas * limits + waiting tenants + different waiting amounts), and O(holds that have to end first).
        """
        names = sorted({*self.by_quota, *quotas.used}, key=lambda name: (-self._waiting(name), name))
        return {name: self._backlog(name, quotas, now) for name in names[:MOST_QUOTAS]}

    def _waiting(self, name: str) -> int:
        found = self.by_quota.get(name)
        return found.amounts.total() if found is not None else 0

    def _backlog(self, name: str, quotas: Quotas, now: float) -> QuotaBacklog:
        found = self.by_quota.get(name, WaitingForQuota())
        most = sorted(found.tenants.items(), key=lambda one: (-one[1][0], one[0]))[:MOST_TENANTS]
        free_s = quotas.free_at({name: min(found.amounts, default=FIRST_ESTIMATE)}, now)
        return QuotaBacklog(
            {tenant: TenantBacklog(count, round(amount, 6)) for tenant, (count, amount) in most},
            self._waiting(name),
            None if free_s == math.inf else free_s if free_s > now else 0.0,
            round(quotas.used.get(name, 0.0), 6),
        )

    def check(self, queued: dict[str, ActionState], pools: Iterable[Pool]) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert self.counted.keys() == {name for name, one in queued.items() if one.needed_quotas}, "actions with quotas"
        stuck = {name for pool in pools for lane in pool.all_lanes() for name in lane.stuck}
        assert self.aside == stuck & self.counted.keys(), "actions with quotas that are set aside"
        for name, found in self.by_quota.items():
            total = sum(amounts.get(name, 0.0) for amounts in self.counted.values())
            assert math.isclose(sum(amount for _, amount in found.tenants.values()), total, abs_tol=1e-6), "amounts"
            assert math.isclose(found.total, total, abs_tol=1e-6), "amounts together"
            aside = sum(self.counted[action].get(name, 0.0) for action in self.aside)
            assert math.isclose(found.aside, aside, abs_tol=1e-6), "amounts set aside"
            count = sum(name in amounts for amounts in self.counted.values())
            assert sum(count for count, _ in found.tenants.values()) == found.amounts.total() == count > 0, "actions"
