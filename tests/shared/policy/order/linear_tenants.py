"""Oracle of the fair queue: the same law over plain dictionaries, with a scan of all tenants for each question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from shared.policy.order.ebf import EbfKey
from shared.policy.order.tenants import LEAST_CHARGE_S


@dataclass
class LinearFairQueue:
    """Fair queue of actions without batches."""

    weights: Mapping[str, float]
    waiting: dict[str, dict[str, EbfKey]] = field(default_factory=dict)
    virtual: dict[str, float] = field(default_factory=dict)
    turn: str = ""

    def push(self, tenant: str, key: EbfKey, action: str) -> None:
        if tenant not in self.waiting:
            least = min((self.virtual[name] for name in self.waiting), default=0.0)
            self.virtual[tenant] = max(self.virtual.get(tenant, 0.0), least)
        self.waiting.setdefault(tenant, {})[action] = key

    def remove(self, tenant: str, action: str) -> None:
        del self.waiting[tenant][action]
        if not self.waiting[tenant]:
            del self.waiting[tenant]
        if not self.waiting:
            self.virtual.clear()

    def charge(self, tenant: str, unit_s: float, *, ends_turn: bool) -> None:
        self.virtual[tenant] += max(unit_s, LEAST_CHARGE_S) / self.weights.get(tenant, 1.0)
        if ends_turn:
            self.turn = ""

    def refund(self, tenant: str, unit_s: float, *, turn: bool) -> None:
        cost = max(unit_s, LEAST_CHARGE_S) / self.weights.get(tenant, 1.0)
        self.virtual[tenant] = max(0.0, self.virtual[tenant] - cost)
        if turn:
            self.turn = tenant

    def rows(self) -> list[list[str]]:
        """Actions of each tenant in order: first the tenant in turn, then by virtual time."""
        if not self.waiting:
            return []
        ranked = sorted(self.waiting, key=lambda name: (self.virtual[name], name))
        if self.turn not in self.waiting:
            self.turn = ranked[0]
        ranked.sort(key=lambda name: name != self.turn)
        return [sorted(self.waiting[name], key=self.waiting[name].__getitem__) for name in ranked]

    def mixed(self) -> list[str]:
        return [action for row in zip_longest(*self.rows()) for action in row if action is not None]
