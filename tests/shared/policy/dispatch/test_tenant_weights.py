"""Weights of tenants under saturation: each tenant gets unit-seconds in proportion to its weight."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    InventoryReported,
    NodeJoined,
    RequestsSubmitted,
    Stimulus,
    WeightsReceived,
)
from shared.policy.model.formulation import Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult

WAITING = 40
"""Waiting actions of each tenant at all times: the mesh is saturated."""
TOLERANCE = 0.03


@dataclass(slots=True)
class SaturatedMesh:
    """Four nodes of eight cores in virtual time. A tenant submits an action whenever one of its actions has ended."""

    rng: Random
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    now: float = 0.0
    works: dict[str, tuple[str, Work, float]] = field(default_factory=dict)
    """Action -> its tenant, its work, its duration."""
    ends: list[tuple[float, str, Grant]] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)
    """Tenant -> unit-seconds that were granted."""

    def __post_init__(self) -> None:
        for at in range(4):
            self.give(NodeJoined(f"n{at}", "1", "cpu", {"cores": 8}, frozenset({"run"}), frozenset({"cores"})))
            self.give(InventoryReported(f"n{at}", "1", {}))

    def give(self, stimulus: Stimulus) -> None:
        for command in self.dispatcher.handle(self.now, stimulus):
            if isinstance(command, Grant):
                tenant, work, lasts_s = self.works[command.action]
                self.used[tenant] = self.used.get(tenant, 0.0) + work.units["cores"] * lasts_s
                heapq.heappush(self.ends, (self.now + lasts_s, command.action, command))

    def submit(self, tenant: str) -> None:
        name = f"a{len(self.works)}"
        learned = self.rng.random() < 0.3
        lasts_s = 0.7 if learned else self.rng.uniform(0.2, 3.0)
        units = {"cores": self.rng.choices([1, 2, 4], [6, 3, 1])[0]}
        work = Work("work", "run", "cores@cpu", units, 60.0, duration_s=None if learned else lasts_s)
        self.works[name] = (tenant, work, lasts_s)
        arrival = (round(self.now * 1000), len(self.works))
        task = "learned" if learned else "declared"
        self.give(RequestsSubmitted((Request(name, tenant, task, "", arrival, (work,), self.now + 1e6),)))

    def run(self, until_s: float) -> dict[str, float]:
        """Let time pass. Returns each tenant's part of the unit-seconds that were granted meanwhile."""
        before = dict(self.used)
        while self.ends[0][0] < until_s:
            self.now, action, grant = heapq.heappop(self.ends)
            tenant, _, lasts_s = self.works[action]
            result = AttemptResult("ok", True)
            self.give(AttemptsEnded((Ended(action, grant.node, grant.attempt, 0, result, execution_s=lasts_s),)))
            self.submit(tenant)
        granted = {tenant: unit_s - before.get(tenant, 0.0) for tenant, unit_s in self.used.items()}
        return {tenant: unit_s / sum(granted.values()) for tenant, unit_s in granted.items()}


def deviation(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Largest relative difference from the parts that the weights demand."""
    total = sum(weights.values())
    return max(abs(parts[tenant] * total / weight - 1.0) for tenant, weight in weights.items())


@pytest.mark.parametrize("seed", range(3))
def test_tenants_get_unit_seconds_in_proportion_to_their_weights(seed: int) -> None:
    mesh = SaturatedMesh(Random(seed))
    weights = {"ada": 1.0, "bob": 2.0, "cyd": 5.0}
    mesh.give(WeightsReceived(weights))
    for _ in range(WAITING):
        for tenant in weights:
            mesh.submit(tenant)
    mesh.run(20.0)
    assert deviation(mesh.run(220.0), weights) <= TOLERANCE
    others = {"ada": 4.0, "bob": 0.5, "cyd": 1.0}
    mesh.give(WeightsReceived({"ada": 4.0, "bob": 0.5}))  # cyd has the default again
    mesh.run(240.0)
    assert deviation(mesh.run(440.0), others) <= TOLERANCE
    mesh.dispatcher.check()


def test_a_new_weight_changes_later_charges_only() -> None:
    """Otherwise a tenant with ten times its weight would get everything until it had made up for its past."""
    mesh = SaturatedMesh(Random(7))
    for _ in range(WAITING):
        for tenant in ("ada", "bob"):
            mesh.submit(tenant)
    mesh.run(200.0)
    mesh.give(WeightsReceived({"ada": 10.0}))
    parts = mesh.run(210.0)
    assert parts["bob"] > 0.03, "about one part of eleven, at once"


def test_queues_that_are_made_later_use_the_weights() -> None:
    mesh = SaturatedMesh(Random(1))
    mesh.give(WeightsReceived({"ada": 3.0}))
    pool = mesh.dispatcher.cluster.queues.pool("slots@cpu")
    assert pool.queue.weights == pool.lane("n0").queue.weights == {"ada": 3.0}
    mesh.give(WeightsReceived({}))
    assert pool.queue.weights == pool.lane("n0").queue.weights == {}
