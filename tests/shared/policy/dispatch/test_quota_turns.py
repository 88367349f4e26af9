"""Turns in several quotas: they never stop all work, and no quota idles for work that lacks something else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import InventoryReported, NodeJoined, NodeSeen, TickPassed
from shared.policy.model.formulation import Command, EnvironmentNeed, Grant, Request, Work
from shared.policy.model.quotas import QuotaLimits, Rate
from tests.shared.policy.dispatch.leading import ended
from tests.shared.policy.dispatch.saturated_quota import SaturatedQuota
from tests.shared.policy.strategies import CORES, SLOTS, SPECS, reported, request, submitted, work

EQUAL = {"ada": 1.0, "bob": 1.0}
REFILL_S = 10.0
"""Seconds in which every rate of these tests is full."""


def taking(pool: str = CORES, lasts_s: float = 5.0, **quotas: float) -> Work:
    return replace(work(pool, timeout_s=100.0), quotas=quotas, duration_s=lasts_s)


@dataclass
class Nodes:
    """Two nodes without prefetching, step by step."""

    dispatcher: Dispatcher = field(default_factory=lambda: Dispatcher(specs=SPECS))
    running: dict[str, Grant] = field(default_factory=dict)
    now: float = 0.0
    submitted: int = 0

    def start(self, limits: dict[str, QuotaLimits], cores: int = 64) -> None:
        for name, one in limits.items():
            self.dispatcher.handle(0.0, QuotaSet(name, one))
        for name, capacity in (("n", {"cores": cores, "memory": 8}), ("m", {"slots": 64})):
            joined = NodeJoined(name, "1", "cpu", capacity, frozenset({"run", "act", "runtime"}))
            self.dispatcher.handle(0.0, joined)
            self.dispatcher.handle(0.0, InventoryReported(name, "1", {}))

    def submit(self, tenant: str, one: Work, need: EnvironmentNeed | None = None) -> list[str]:
        """Names of what is granted then: the tenant and a number."""
        self.submitted += 1
        made: Request = request(f"{tenant}{self.submitted}", one, tenant=tenant, seq=self.submitted, deadline_s=1e9)
        return self.granted(self.dispatcher.handle(self.now, submitted(replace(made, need=need))))

    def end(self, name: str) -> list[str]:
        return self.granted(self.dispatcher.handle(self.now, reported(ended(self.running.pop(name)))))

    def tick(self, now: float) -> list[str]:
        self.now = now
        seen = [NodeSeen(name, "1") for name in sorted(self.dispatcher.node_names())]
        return self.granted(self.dispatcher.handle(now, *seen, TickPassed()))

    def granted(self, commands: list[Command]) -> list[str]:
        grants = [one for one in commands if isinstance(one, Grant)]
        self.running |= {one.action: one for one in grants}
        self.dispatcher.check()
        return [one.action for one in grants]


def test_tenants_that_precede_each_other_in_two_quotas_do_not_stop() -> None:
    nodes = Nodes()
    nodes.start({"q1": QuotaLimits((1.0,), weights=EQUAL), "q2": QuotaLimits((1.0,), weights=EQUAL)})
    assert nodes.submit("bob", taking(q1=1.0)) == ["bob1"]
    assert nodes.submit("ada", taking(q2=1.0)) == ["ada2"]
    assert nodes.submit("ada", taking(q1=1.0, q2=1.0)) == []
    assert nodes.submit("bob", taking(q1=1.0, q2=1.0)) == []
    first = [*nodes.end("bob1"), *nodes.end("ada2")]
    assert len(first) == 1, "one of them starts when both quotas are free"
    assert {*first, *nodes.end(first[0])} == {"ada3", "bob4"}


@pytest.mark.parametrize("weights", [EQUAL, {}])
def test_turns_in_calls_and_in_tokens_use_both(weights: dict[str, float]) -> None:
    """One tenant takes ten times the tokens of the other for a call. Four calls run at any time."""
    works = {"ada": taking(api=1.0, tokens=1000.0), "bob": taking(api=1.0, tokens=100.0)}
    tokens = QuotaLimits((), (Rate(3000.0, 1.0),), weights)
    made = SaturatedQuota(works, {"api": QuotaLimits((4.0,), weights=weights), "tokens": tokens})
    made.join("ada")
    made.join("bob")
    made.run(120)
    began_s, first = made.now, len(made.grants)
    made.run(120)
    assert 120 / (made.now - began_s) >= 0.97 * 4, "an attempt lasts a second"
    assert min(Counter(tenant for _, tenant, _ in made.grants[first:]).values()) >= 12, "nobody starves"


@pytest.mark.parametrize("names", [("search", "hourly"), ("hourly", "search")])
def test_a_quota_does_not_idle_for_a_tenant_that_lacks_another_one_for_long(names: tuple[str, ...]) -> None:
    nodes = Nodes()
    nodes.start({"search": QuotaLimits((1.0,), weights=EQUAL), "hourly": QuotaLimits((), (Rate(1.0, 3600.0),))})
    assert nodes.submit("ada", taking(hourly=1.0)) == ["ada1"]
    assert nodes.submit("bob", taking(search=1.0)) == ["bob2"]
    assert nodes.submit("ada", taking(CORES, 5.0, **dict.fromkeys(names, 1.0))) == []
    assert nodes.submit("bob", taking(search=1.0)) == []
    assert nodes.submit("bob", taking(search=1.0)) == []
    assert nodes.end("bob2") == ["bob4"]
    nodes.tick(10.0)
    assert nodes.end("bob4") == ["bob5"]
    nodes.tick(3599.0)
    assert nodes.submit("bob", taking(search=1.0)) == []
    assert nodes.end("bob5") == [], "ada's is refilled before bob's would end"
    assert nodes.tick(3601.0) == ["ada3"]
    assert nodes.submit("ada", taking(search=1.0)) == []
    assert nodes.end("ada3") == ["bob6"], "what ada has lent is not owed to it"


def test_a_quota_does_not_idle_for_a_trajectory_that_waits_for_its_node() -> None:
    nodes = Nodes()
    nodes.start({"search": QuotaLimits((1.0,), weights=EQUAL)}, cores=1)
    need, act = EnvironmentNeed("t1", "runtime", {"memory": 1}), work(kind="act")
    assert nodes.submit("ada", act, need) == ["ada1"]
    nodes.end("ada1")
    assert nodes.submit("bob", taking(SLOTS, search=1.0)) == ["bob2"]
    assert nodes.submit("carl", taking(lasts_s=90.0)) == ["carl3"]
    assert nodes.submit("ada", replace(act, quotas={"search": 1.0}), need) == []
    assert nodes.submit("bob", taking(SLOTS, search=1.0)) == []
    assert nodes.end("bob2") == ["bob5"]
    assert nodes.end("carl3") == []
    assert nodes.submit("bob", taking(SLOTS, search=1.0)) == []
    assert nodes.end("bob5") == ["ada4"], "its core is free, so it is its turn"


def test_a_quota_does_not_idle_for_work_that_backfill_does_not_reach() -> None:
    """It waits for cores behind another tenant's head, so a round does not look at it."""
    nodes = Nodes()
    nodes.start({"search": QuotaLimits((1.0,), weights=EQUAL)}, cores=1)
    assert nodes.submit("bob", taking(SLOTS, search=1.0)) == ["bob1"]
    assert nodes.submit("carl", taking(search=1.0)) == []
    assert nodes.submit("ada", taking(search=1.0)) == []
    assert nodes.submit("bob", taking(SLOTS, search=1.0)) == []
    assert nodes.submit("carl", taking(lasts_s=1.0)) == ["carl5"], "it holds the core before bob's call ends"
    assert nodes.end("bob1") == ["bob4"]


@pytest.mark.parametrize("weights", [EQUAL, {"ada": 1.0, "bob": 4.0, "carl": 4.0}])
def test_work_that_needs_two_busy_quotas_is_not_starved(weights: dict[str, float]) -> None:
    """Each quota is always held by a tenant that needs only this one."""
    nodes = Nodes()
    nodes.start({"q1": QuotaLimits((1.0,), weights=weights), "q2": QuotaLimits((1.0,), weights=weights)})
    for _ in range(60):
        nodes.submit("bob", taking(SLOTS, q1=1.0))
        nodes.submit("carl", taking(SLOTS, q2=1.0))
    for _ in range(3):
        nodes.submit("ada", taking(q1=1.0, q2=1.0))
    granted: list[str] = []
    for at in range(1, 60):
        nodes.tick(2.5 * at)
        tenants = ("bob", "ada") if at % 2 else ("carl",)  # their ends alternate
        for name in [one for one in nodes.running if one.startswith(tenants)]:
            granted += nodes.end(name)
    assert sum(name.startswith("ada") for name in granted) == 3


LIMITS = st.sampled_from(
    [
        ((1.0,), ()),
        ((1.0,), ()),
        ((3.0,), ()),
        ((2.0,), (Rate(6.0, REFILL_S),)),
        ((), (Rate(3.0, REFILL_S / 2),)),
        ((), (Rate(9.0, REFILL_S), Rate(4.0, 1.0))),
    ]
)
WEIGHTS = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from([0.2, 1.0, 5.0]) for name in ("ada", "bob", "carl")}
)
WORKS = st.tuples(
    st.sampled_from(["ada", "bob", "ada", "bob", "carl", "dan"]),
    st.sampled_from([CORES, CORES, SLOTS]),
    st.dictionaries(st.sampled_from(["q1", "q2"]), st.just(1.0), min_size=1)
    | st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), st.sampled_from([0.5, 1.0]), min_size=2),
    st.sampled_from([0.1, 2.0, 50.0]),
)


@given(
    st.fixed_dictionaries({name: st.tuples(LIMITS, WEIGHTS) for name in ("q1", "q2", "q3")}),
    st.lists(WORKS, min_size=8, max_size=24),
    st.data(),
)
@settings(deadline=None, max_examples=100)
def test_a_round_grants_while_waiting_work_fits(
    quotas: dict[str, tuple[tuple[tuple[float, ...], tuple[Rate, ...]], dict[str, float]]],
    works: list[tuple[str, str, dict[str, float], float]],
    data: st.DataObject,
) -> None:
    """Whatever has happened: if nothing is held and rates are full, the next round grants some of what waits."""
    nodes = Nodes()
    nodes.start({name: QuotaLimits(*limits, weights) for name, (limits, weights) in quotas.items()}, cores=4)
    for tenant, pool, amounts, lasts_s in works:
        nodes.submit(tenant, taking(pool, lasts_s, **amounts))
        ending = data.draw(st.sampled_from(["", *sorted(nodes.running)]))
        if ending:
            nodes.end(ending)
        nodes.tick(nodes.now + data.draw(st.sampled_from([0.0, 0.1, 1.0, 10.0])))
    for name in list(nodes.running):
        nodes.end(name)
    while nodes.dispatcher.cluster.queues.queued:
        for name in list(nodes.running):
            nodes.end(name)
        if not nodes.running and nodes.dispatcher.cluster.queues.queued:
            assert nodes.tick(nodes.now + REFILL_S), "the quotas and nodes are free, and work waits"
