"""Tenants that always wait for one quota, in virtual time: what each is granted."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    InventoryReported,
    NodeJoined,
    NodeSeen,
    TickPassed,
    WeightsReceived,
)
from shared.policy.model.formulation import Command, Grant, Work
from shared.policy.model.quotas import QuotaLimits
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from tests.shared.policy.strategies import SPECS, request, submitted

DEPTH = 40
"""Actions of each tenant that wait at any time."""


@dataclass(slots=True)
class SaturatedQuota:
    """Each grant of a tenant is followed by its next action. An attempt lasts a second."""

    works: Mapping[str, Work]
    """Tenant -> its work."""
    quotas: Mapping[str, QuotaLimits]
    used: float | None = None
    """Factor by which attempts use less or more than they take; None: they do not report it."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant -> weight in the whole mesh."""
    tenants: list[str] = field(default_factory=list)
    """Tenants that submit at present."""
    dispatcher: Dispatcher = field(default_factory=lambda: Dispatcher(specs=SPECS))
    now: float = 0.0
    grants: list[tuple[float, str, float]] = field(default_factory=list)
    """Time, tenant, amount of `api`."""
    _running: list[tuple[float, int, str, Grant]] = field(default_factory=list)
    _submitted: int = 0
    _lasting: dict[str, Work] = field(init=False)
    """Tenant -> its work. Equal works are one object, as those of a task are."""

    def __post_init__(self) -> None:
        lasting = [replace(one, duration_s=1.0) for one in self.works.values()]
        self._lasting = {tenant: lasting[lasting.index(one)] for tenant, one in zip(self.works, lasting, strict=True)}
        self.dispatcher.handle(0.0, WeightsReceived(self.weights))
        for name, limits in self.quotas.items():
            self.dispatcher.handle(0.0, QuotaSet(name, limits))
        joined = NodeJoined("n", "1", "cpu", {"cores": 512, "slots": 512, "memory": 64}, frozenset({"run", "judge"}))
        self.dispatcher.handle(0.0, joined)
        self.dispatcher.handle(0.0, InventoryReported("n", "1", {}))

    def join(self, tenant: str) -> None:
        """A tenant begins to submit."""
        self.tenants.append(tenant)
        self._submit([tenant] * DEPTH)

    def _submit(self, tenants: list[str]) -> None:
        new = []
        for tenant in tenants:
            self._submitted += 1
            one = request(
                f"{tenant}/{self._submitted}",
                self._lasting[tenant],
                at_s=self.now,
                seq=self._submitted,
                tenant=tenant,
                deadline_s=1e9,
            )
            new.append(one)
        self._note(self.dispatcher.handle(self.now, submitted(*new)))

    def _note(self, commands: list[Command]) -> None:
        granted = [one for one in commands if isinstance(one, Grant)]
        for grant in granted:
            tenant = grant.action.partition("/")[0]
            assert grant.hold is not None
            self.grants.append((self.now, tenant, grant.hold.amounts.get("api", 0.0)))
            heapq.heappush(self._running, (self.now + 1.0, len(self.grants), tenant, grant))
        if granted:
            self._submit([one.action.partition("/")[0] for one in granted if self._submits(one)])

    def _submits(self, grant: Grant) -> bool:
        return grant.action.partition("/")[0] in self.tenants

    def run(self, grants: int) -> None:
        """Go on until so many more grants were made."""
        wanted, began_s = len(self.grants) + grants, self.now
        while len(self.grants) < wanted:
            assert self.now - began_s <= grants, "less than one grant a second"
            ends_s = self._running[0][0] if self._running else self.now + 1.0
            self.now = max(self.now, min(ends_s, self.dispatcher.next_wake_s))
            self.dispatcher.handle(self.now, NodeSeen("n", "1"))
            ends = []
            while self._running and self._running[0][0] <= self.now:
                ends.append(self._ended(heapq.heappop(self._running)[3]))
            self._note(self.dispatcher.handle(self.now, AttemptsEnded(tuple(ends)) if ends else TickPassed()))

    def _ended(self, grant: Grant) -> Ended:
        assert grant.hold is not None
        used = {} if self.used is None else {name: self.used * one for name, one in grant.hold.amounts.items()}
        result = AttemptResult("ok", True, quotas_used=used)
        return Ended(grant.action, grant.node, grant.attempt, grant.stage, result, execution_s=1.0)

    def amounts(self, first: int = 0) -> Counter[str]:
        """Amount that each tenant was granted, from this grant on."""
        found: Counter[str] = Counter()
        for _, tenant, amount in self.grants[first:]:
            found[tenant] += amount  # type: ignore[assignment]  # amounts are floats
        return found
