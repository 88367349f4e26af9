"""Shares of tenants in a quota: start-time fair queueing over the amounts that they take.

Each tenant of a quota has a virtual time: the amounts that it was granted, divided by its weight. That is its weight in
this quota, or in the whole mesh if the quota has no weights. While several tenants wait for the quota, the one with the
lowest goes first, in whatever lanes and pools their work waits. A tenant that comes back starts at the virtual time of
the newest grant at least, so idleness is not saved up, and its share returns with the next grants. The same holds for a
tenant whose work lacks something else when its turn comes (`lend`).

Law: between two grants of a tenant that waits for nothing else, every other one takes at most what its weight gives it
for the amount of the first, and one more amount of its own (tests/shared/policy/dispatch/test_quota_weights.py). So
no such tenant starves, whatever the weights.

Source: P. Goyal, H. M. Vin, H. Cheng, Start-time Fair Queueing, SIGCOMM 1996. A restart of the leader resets the times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from shared.policy.model.quotas import Amounts, QuotaHold, QuotaLimits
from shared.policy.order.ranked_tenants import RankedTenants

DEFAULT_WEIGHT: Final = 1.0
"""Weight of a tenant that the weights do not name."""
CREDIT: Final = 4.0
"""Amounts by which a tenant stays behind others while it waits for another quota that it will get in time. Without them
a tenant that needs two busy quotas would lose its turn in one whenever it waits for the other. Without a bound it would
take everything after it was limited for long."""
MOST_IDLE: Final = 4096
"""Most idle tenants of a quota whose virtual time is kept. Beyond it, all start level with the others."""


@dataclass(slots=True)
class Share:
    """One tenant of one quota."""

    time: float
    """Virtual time: amount / weight."""
    holds: int = 0
    """Number of its attempts that hold the quota."""
    waiting: str = ""
    """An action of it that needs the quota, and lacked one or waited for others' turns when it was last looked at."""

    @property
    def is_present(self) -> bool:
        """It waits or holds. Otherwise it is idle."""
        return bool(self.holds or self.waiting)


@dataclass(slots=True)
class Sharing:
    """Tenants of one quota."""

    weights: Mapping[str, float]
    """Tenant -> weight > 0. A change applies to later grants only."""
    tenants: dict[str, Share] = field(default_factory=dict)
    ranked: RankedTenants = field(default_factory=RankedTenants)
    """Tenants that wait, by virtual time."""
    served: float = 0.0
    """Virtual time of the tenant of the newest grant, before that grant."""

    def is_alone(self, tenant: str) -> bool:
        """Return whether no other tenant waits."""
        waiting = len(self.ranked)
        return not waiting or (waiting == 1 and tenant in self.ranked)

    def join(self, tenant: str) -> Share:
        """Return a tenant's share; one that was idle starts level with the tenant that was served last."""
        share = self.tenants.get(tenant)
        if share is None:
            if len(self.tenants) >= MOST_IDLE:
                self.tenants = {name: one for name, one in self.tenants.items() if one.is_present}
            share = self.tenants[tenant] = Share(self.served)
        elif not share.is_present:
            share.time = max(share.time, self.served)
        return share

    def charge(self, tenant: str, share: Share, amount: float) -> None:
        """Charge a tenant for an amount; negative: give it back."""
        self.set_time(tenant, share, share.time + amount / self.weights.get(tenant, DEFAULT_WEIGHT))

    def set_time(self, tenant: str, share: Share, time: float) -> None:
        """Set a tenant's virtual time."""
        if time != share.time:
            share.time = time
            if share.waiting:
                self.ranked.set(tenant, time)

    def wait(self, tenant: str, share: Share, action: str) -> None:
        """Let an action stand for its tenant; empty: the tenant does not wait."""
        if bool(action) != bool(share.waiting):
            if action:
                self.ranked.set(tenant, share.time)
            else:
                self.ranked.remove(tenant)
        share.waiting = action


@dataclass(slots=True)
class QuotaShares:
    """Shares in all quotas. A grant, a wait and an end cost O(log tenants that wait) for each quota that they name."""

    tenant_weights: dict[str, float] = field(default_factory=dict)
    """Tenant -> weight in quotas without weights: that of the whole mesh. Queues share the mapping."""
    by_quota: dict[str, Sharing] = field(default_factory=dict)

    def set(self, quota: str, limits: QuotaLimits | None) -> None:
        """Create a quota, or change its weights; None: delete it."""
        if limits is None:
            self.by_quota.pop(quota, None)
            return
        weights = limits.weights or self.tenant_weights
        if quota in self.by_quota:
            self.by_quota[quota].weights = weights
        else:
            self.by_quota[quota] = Sharing(weights)

    def among(self, amounts: Amounts) -> list[str]:
        """Return those of these quotas that exist."""
        return [name for name in amounts if name in self.by_quota]

    def is_contended(self, quota: str) -> bool:
        """Return whether several tenants wait for a quota."""
        return len(self.by_quota[quota].ranked) > 1

    def take(self, hold: QuotaHold) -> None:
        """Charge the tenant of a hold that is taken."""
        tenant, action = hold.tenant, hold.action
        for name, amount in hold.amounts.items():
            if (sharing := self.by_quota.get(name)) is None:
                continue
            share = sharing.join(tenant)
            sharing.served = max(sharing.served, share.time)
            if share.waiting == action:
                sharing.wait(tenant, share, "")
            sharing.charge(tenant, share, amount)
            share.holds += 1

    def correct(self, hold: QuotaHold, used: Amounts) -> None:
        """Charge the tenant of a hold for what was really used instead."""
        for name in self.among(used):
            share, sharing = self.by_quota[name].tenants.get(hold.tenant), self.by_quota[name]
            if share is not None:
                sharing.charge(hold.tenant, share, used[name] - hold.amounts[name])

    def end(self, hold: QuotaHold) -> None:
        """End a hold."""
        for name in hold.amounts:
            sharing = self.by_quota.get(name)
            if sharing is not None and (share := sharing.tenants.get(hold.tenant)) is not None:
                share.holds = max(0, share.holds - 1)  # one of before the quota was created again is not counted

    def wait(self, quota: str, tenant: str, action: str) -> None:
        """Note that an action of a tenant waits for a quota."""
        sharing = self.by_quota[quota]
        sharing.wait(tenant, sharing.join(tenant), action)

    def wait_on(self, amounts: Amounts, tenant: str, action: str) -> None:
        """Let an action stand for its tenant in those of these quotas where none does."""
        for name in amounts:
            if (sharing := self.by_quota.get(name)) is not None:
                share = sharing.tenants.get(tenant)
                if share is None or not share.waiting:
                    sharing.wait(tenant, sharing.join(tenant), action)

    def waiting(self, quota: str, tenant: str) -> str:
        """Return the action that stands for a tenant that waits for a quota; empty if there is none."""
        share = self.by_quota[quota].tenants.get(tenant)
        return "" if share is None else share.waiting

    def lend(self, quota: str, tenant: str, kept: float = 0.0) -> None:
        """Note that another tenant was granted in the turn of this one. It continues level if it could not use it; if
        it could, and an amount is kept for it, `CREDIT` of these behind.
        """
        sharing = self.by_quota[quota]
        share = sharing.join(tenant)
        credit = CREDIT * kept / sharing.weights.get(tenant, DEFAULT_WEIGHT)
        sharing.set_time(tenant, share, max(share.time, sharing.served - credit))

    def leave(self, quota: str, tenant: str, action: str) -> bool:
        """Note that an action does not wait for a quota now. Returns whether others have waited for its turn."""
        sharing = self.by_quota.get(quota)
        if sharing is None or (share := sharing.tenants.get(tenant)) is None or share.waiting != action:
            return False
        sharing.wait(tenant, share, "")
        return True

    def contested(self, amounts: Amounts, tenant: str) -> list[str]:
        """Return those of these quotas for which other tenants wait. All of them exist."""
        return [name for name in amounts if not self.by_quota[name].is_alone(tenant)]

    def ahead(self, quota: str, tenant: str) -> Iterator[tuple[str, str]]:
        """Yield (tenant, action) of the tenants that wait for a quota and precede this one, the first one first.

        The caller may let them leave meanwhile. O(1) if there are none, else O(k log k) for k of them.
        """
        sharing = self.by_quota[quota]
        if sharing.is_alone(tenant):
            return
        ranked = sharing.ranked
        time = sharing.join(tenant).time
        if ranked.first()[0] >= time:
            return
        for other in ranked:
            share = sharing.tenants[other]
            if share.time >= time:
                return
            yield other, share.waiting

    def reserved(self, amounts: Amounts, tenant: str, other: str) -> Amounts:
        """Return the quotas that a waiting head of a tenant reserves from work of another one: those that do not exist.
        In the others, turns decide the order of the two.
        """
        if tenant == other:
            return amounts
        return {name: amount for name, amount in amounts.items() if name not in self.by_quota}
