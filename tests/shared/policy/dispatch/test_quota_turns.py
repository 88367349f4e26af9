"""Turns in several quotas: they never stop all work, and no quota idles for work that lacks something else."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

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


SEARCHES = {"slots": QuotaLimits((2.0,)), "rate": QuotaLimits((), (Rate(2.0, 1.0),))}
APIS = {
    "slots": lambda most: QuotaLimits((most,)),
    "rate": lambda most: QuotaLimits((), (Rate(most, 1.0),)),
    "rate without a burst": lambda most: QuotaLimits((), (Rate(most, 1.0, 1.0),)),
}


@pytest.mark.parametrize(("most", "ada", "bob"), [(20.0, 2.0, 18.0), (10.0, 2.0, 8.0), (3.0, 1.5, 1.5)])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("pool", [CORES, SLOTS])
def test_a_tenant_that_another_quota_limits_leaves_the_rest_to_the_others(
    pool: str, search: str, api: str, most: float, ada: float, bob: float
) -> None:
    """Two searches a second are all that ada can make. Of the API it gets as much, or a half if that is less."""
    works = {"ada": taking(api=1.0, search=1.0), "bob": taking(pool, api=1.0)}
    made = SaturatedQuota(works, {"api": APIS[api](most), "search": SEARCHES[search]})
    made.join("ada")
    made.join("bob")
    made.run(100)
    began_s, first = made.now, len(made.grants)
    made.run(300)
    taken, lasted_s = made.amounts(first), made.now - began_s
    assert taken["ada"] / lasted_s == pytest.approx(ada, rel=0.03)
    assert taken["bob"] / lasted_s == pytest.approx(bob, rel=0.03)


@pytest.mark.parametrize(("weight", "both", "one"), [(1.0, 5.0, 5.0), (4.0, 8.0, 2.0)])
@pytest.mark.parametrize("quotas", [("api", "other"), ("api", "other", "third")])
def test_a_tenant_that_needs_several_busy_quotas_has_its_share_of_each(
    quotas: tuple[str, ...], weight: float, both: float, one: float
) -> None:
    """Each quota has ten slots for a second, and a tenant that needs no other one."""
    works = {"both": replace(taking(), quotas=dict.fromkeys(quotas, 1.0))}
    works |= {name: replace(taking(), quotas={name: 1.0}) for name in quotas}
    limits = QuotaLimits((10.0,), weights={"both": weight})
    made = SaturatedQuota(works, dict.fromkeys(quotas, limits))
    for name in works:
        made.join(name)
    made.run(200)
    first, began_s = len(made.grants), made.now
    made.run(600)
    granted = Counter(tenant for _, tenant, _ in made.grants[first:])
    for name, per_s in {"both": both, **dict.fromkeys(quotas, one)}.items():
        assert granted[name] / (made.now - began_s) == pytest.approx(per_s, rel=0.05), granted


def test_a_tenant_that_was_limited_for_long_does_not_take_everything_afterwards() -> None:
    works = {"ada": taking(api=1.0, search=1.0), "bob": taking(api=1.0)}
    made = SaturatedQuota(works, {"api": QuotaLimits((10.0,)), "search": QuotaLimits((2.0,))})
    made.join("ada")
    made.join("bob")
    made.run(1000)
    made.dispatcher.handle(made.now, QuotaSet("search", QuotaLimits((100.0,))))
    first = len(made.grants)
    made.run(100)
    assert made.amounts(first)["ada"] == pytest.approx(50.0, abs=8.0)


@pytest.mark.parametrize("slots", [10.0, 4.0])
@pytest.mark.parametrize("pool", [CORES, SLOTS])
def test_the_weights_of_a_plentiful_quota_do_not_matter(slots: float, pool: str) -> None:
    """The API limits both tenants. They hold three slots at any time, and ada has the weight of these."""
    works = {"ada": taking(api=1.0, slots=1.0), "bob": taking(pool, api=1.0, slots=1.0)}
    api = QuotaLimits((), (Rate(3.0, 1.0, 1.0),), {"ada": 1.0, "bob": 2.0})
    made = SaturatedQuota(works, {"api": api, "slots": QuotaLimits((slots,), weights={"ada": 9.0, "bob": 1.0})})
    made.join("ada")
    made.join("bob")
    made.run(60)
    first = len(made.grants)
    made.run(300)
    taken = made.amounts(first)
    assert taken["ada"] / 300 == pytest.approx(1 / 3, rel=0.03), taken


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


def test_a_rate_does_not_idle_for_an_overdue_attempt() -> None:
    """It is assumed to end in as long as it is overdue, 0.4 s, and the rate is refilled by then."""
    nodes = Nodes()
    nodes.start({"api": QuotaLimits((), (Rate(10.0, 1.0, 1.0),)), "own": QuotaLimits((1.0,))})
    assert nodes.submit("ada", taking(api=1.0, own=1.0)) == ["ada1"]
    assert nodes.submit("ada", taking(api=1.0, own=1.0)) == []
    for number in range(3, 7):
        nodes.tick(nodes.now + 1.0)
        assert nodes.submit("bob", taking(lasts_s=1.0, api=1.0)) == [f"bob{number}"]
        nodes.end(f"bob{number}")
    nodes.tick(5.4)
    assert nodes.submit("bob", taking(lasts_s=1.0, api=1.0)) == ["bob7"]


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


QUOTAS = st.fixed_dictionaries({name: st.tuples(LIMITS, WEIGHTS) for name in ("q1", "q2", "q3")})


@given(QUOTAS, st.lists(WORKS, min_size=8, max_size=24), st.data())
@settings(deadline=None, max_examples=100)
def test_what_is_enough_for_all_tenants_waits_for_none(
    quotas: dict[str, tuple[tuple[tuple[float, ...], tuple[Rate, ...]], dict[str, float]]],
    works: list[tuple[str, str, dict[str, float], float]],
    data: st.DataObject,
) -> None:
    """Nodes have room for all. So an action waits only if a quota that it needs has not enough for it and for the
    largest amount that each tenant waits for besides.
    """
    nodes = Nodes()
    nodes.start({name: QuotaLimits(*limits, weights) for name, (limits, weights) in quotas.items()})

    def free(name: str) -> float:
        ledger, (slots, rates) = nodes.dispatcher.cluster.quotas, quotas[name][0]
        held = [most - ledger.used.get(name, 0.0) for most in slots]
        return min(*held, *(rate.most - ledger.missing(name, rate, nodes.now) for rate in rates), math.inf)

    def check() -> None:
        waiting = list(nodes.dispatcher.cluster.queues.queued.values())
        for action in waiting:
            lacks = False
            for name, amount in action.needed_quotas.items():
                largest: dict[str, float] = {}
                for other in waiting:
                    if other is not action and name in other.needed_quotas:
                        tenant = other.request.tenant
                        largest[tenant] = max(largest.get(tenant, 0.0), other.needed_quotas[name])
                lacks = lacks or free(name) < amount + sum(largest.values()) - 1e-6
            assert lacks, f"{action.request.id} waits"

    for tenant, pool, amounts, lasts_s in works:
        nodes.submit(tenant, taking(pool, lasts_s, **amounts))
        check()
        ending = data.draw(st.sampled_from(["", *sorted(nodes.running)]))
        if ending:
            nodes.end(ending)
            check()
        nodes.tick(nodes.now + data.draw(st.sampled_from([0.0, 0.1, 1.0, 10.0])))
        check()


@given(QUOTAS, st.lists(WORKS, min_size=8, max_size=24), st.data())
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


def test_many_turns_are_served_in_rounds_that_follow_at_once() -> None:
    """A thousand actions of two tenants, of which all of one are older, wait in two pools when the quota is raised."""
    nodes = Nodes()
    nodes.start({"search": QuotaLimits((1.0,))}, cores=1000)
    nodes.dispatcher.handle(0.0, NodeJoined("m2", "1", "cpu", {"slots": 1000}, frozenset({"run"})))
    nodes.dispatcher.handle(0.0, InventoryReported("m2", "1", {}))
    works = {"ada": taking(CORES, search=1.0), "bob": taking(SLOTS, search=1.0)}
    for number, (tenant, one) in enumerate(works.items()):
        names = range(500 * number, 500 * (number + 1))
        batch = [request(f"{tenant}{at}", one, tenant=tenant, seq=at, deadline_s=1e9) for at in names]
        nodes.granted(nodes.dispatcher.handle(1.0, submitted(*batch)))
    nodes.now = 2.0
    granted = nodes.granted(nodes.dispatcher.handle(2.0, QuotaSet("search", QuotaLimits((2000.0,)))))
    rounds = 1
    while nodes.dispatcher.next_wake_s <= 2.0:
        granted += nodes.tick(2.0)
        rounds += 1
    assert len(granted) == 999
    assert rounds > 1, "more turns than one round serves"
    first = Counter(name[:3] for name in granted[:400])
    assert abs(first["ada"] - first["bob"]) <= 8, "they take turns"
