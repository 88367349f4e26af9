"""Calls of model services that wait: what they keep from others, and what they wait for."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from random import Random

import pytest
from msgspec.structs import replace

from shared.policy.dispatch import node_choice
from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.engine_choice import EngineChoice
from shared.policy.dispatch.node_choice import FEW
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.refused_work import RefusedWork
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    AttemptStarted,
    PlannerChecked,
    RequestsSubmitted,
    TargetReceived,
)
from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.model.formulation import Grant, Work
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.pools import Lane, Pool
from tests.shared.policy.dispatch.test_engine_places import Cluster, call
from tests.shared.policy.strategies import request


def judged(service: str, duration_s: float = 4.0, **quotas: float) -> Work:
    return replace(call(service, 1, duration_s=duration_s), quotas=quotas)


def services_of(cluster: Cluster, grants: list[Grant]) -> str:
    return "".join(cluster.works[one.action].service for one in grants)


def of_tenant(cluster: Cluster, tenant: str, *works: Work) -> list[Grant]:
    """Submit calls of a tenant."""
    new = []
    for one in works:
        name = f"r{len(cluster.works)}"
        cluster.works[name] = one
        new.append(replace(request(name, one, at_s=cluster.now, seq=len(cluster.works)), tenant=tenant))
    return cluster.handle(RequestsSubmitted(tuple(new)))


@pytest.mark.parametrize("degrees", [(1,), (1, 2)])
@pytest.mark.parametrize("longer_s", [0.0, 0.01])
def test_a_backlog_of_one_service_hides_no_other_one(degrees: tuple[int, ...], longer_s: float) -> None:
    """More calls wait than backfill tries; the engine of the other service is idle on another node. Each call may take
    longer than the one before.
    """
    cluster = Cluster()
    cluster.join("a", 2, {"A": ServedModel(degrees, 1, 60.0)})
    cluster.join("b", 2, {"B": ServedModel(degrees, 1, 60.0)})
    calls = [call("A", *degrees, duration_s=4.0 + longer_s * at) for at in range(300)]
    assert set(services_of(cluster, cluster.submit(*calls))) == {"A"}
    assert services_of(cluster, cluster.submit(call("B", *degrees, duration_s=4.0))) == "B"


def test_a_shorter_call_is_tried_after_a_longer_one_that_would_delay_the_head() -> None:
    """P waits for both GPUs until A ends after 10 s. A call of A for 8 s may use the other GPU, one of 20 s not."""
    cluster = Cluster(rule=None)
    cluster.join("a", 2, {"A": ServedModel((1,), 1, 60.0), "P": ServedModel((2,), 1, 20.0)})
    cluster.submit(judged("A", 10.0))
    assert cluster.submit(call("P", 2, duration_s=4.0)) == []
    (granted,) = cluster.submit(*[judged("A", 20.0 - at) for at in range(5)], judged("A", 8.0))
    assert cluster.works[granted.action].duration_s == 8.0


@pytest.mark.parametrize("seed", range(4))
def test_calls_that_are_passed_over_could_not_start(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random calls with durations of their own on unlike nodes. Each step again on a copy that looks at every call.

    Restores take no time: a call that spares a service (`swaps`) is not passed by a later one of its own service. Calls
    are all elastic or none: a plan of elastic ones that is made again may leave room for others.
    """
    rng, passed = Random(seed), 0
    elastic = seed % 2 == 1
    contains, is_full = RefusedWork.__contains__, EngineChoice.is_full

    def counted(self: RefusedWork, action: ActionState) -> bool:
        nonlocal passed
        found = contains(self, action)
        passed += found
        return found

    def counted_full(self: EngineChoice, pool: Pool, lane: Lane, action: ActionState) -> bool:
        nonlocal passed
        found = is_full(self, pool, lane, action)
        passed += found
        return found

    cluster = Cluster()
    names = "ABCD"
    for node in "abc":
        cluster.join(node, 2, {one: ServedModel((1, 2), rng.choice([1, 4]), 40.0) for one in rng.sample(names, 2)})
    for _ in range(120):
        again = deepcopy(cluster)
        event, lasts_s = rng.random(), rng.choice([0.1, 0.5, 2.0])
        degrees = (1, 2) if elastic else rng.choice([(1,), (1,), (2,)])
        made = [call(rng.choice(names), *degrees, duration_s=rng.uniform(0.2, 9.0)) for _ in range(rng.choice([1, 4]))]
        tenant, results = rng.choice(["ada", "bob"]), []
        for one, looks in ((cluster, (counted, counted_full)), (again, (lambda *_: False, lambda *_: False))):
            with monkeypatch.context() as patch:
                patch.setattr(RefusedWork, "__contains__", looks[0])
                patch.setattr(EngineChoice, "is_full", looks[1])
                if event < 0.4:
                    of_tenant(one, tenant, *made)
                else:
                    one.go_to(one.now + lasts_s)
            results.append({name: (end_s, it.node, it.numbers) for name, (end_s, it) in one.running.items()})
        assert results[0] == results[1]
    assert passed > 20


def test_a_service_is_not_evicted_while_its_calls_wait_in_another_lane() -> None:
    """Calls with a quota have a lane of their own."""
    cluster = Cluster(rule=None)
    cluster.handle(QuotaSet("api", QuotaLimits((64.0,))))
    cluster.join("a", 1, {name: ServedModel((1,), 1, 60.0, restore_s={1: 2.0}) for name in "AB"})
    (first,) = cluster.submit(judged("A", 1.0, api=1.0))
    cluster.handle(AttemptStarted(first.action, first.attempt))
    assert cluster.submit(judged("B")) == []
    assert cluster.submit(*[judged("A", 1.0, api=1.0)] * 9) == []
    order = ""
    while len(order) < 4:
        cluster.now += 1.0
        (granted,) = cluster.end(next(iter(cluster.running)))
        order += services_of(cluster, [granted])
    assert order == "AAAA", "it has its turn"
    cluster.now += 2.0
    assert services_of(cluster, cluster.end(next(iter(cluster.running)))) == "B", "its turn is over"


def test_a_head_insists_if_no_lane_has_work_for_the_service_that_has_its_turn() -> None:
    """The calls of that service lack a quota."""
    cluster = Cluster(rule=None)
    cluster.handle(QuotaSet("api", QuotaLimits((1.0,))))
    cluster.join("a", 1, {name: ServedModel((1,), 1, 60.0, restore_s={1: 2.0}) for name in "AB"})
    cluster.join("b", 1, {"C": ServedModel((1,), 1, 60.0)})
    assert services_of(cluster, cluster.submit(judged("C", 90.0, api=1.0))) == "C"
    (first,) = cluster.submit(judged("A", 1.0))
    assert cluster.submit(judged("A", 1.0, api=1.0), judged("B")) == []
    cluster.now += 3.0
    assert services_of(cluster, cluster.end(first.action)) == "B"


def test_a_turn_begins_when_the_first_call_executes() -> None:
    """The node has held the engine back for seven seconds more than was expected."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {name: ServedModel((1,), 1, 60.0, restore_s={1: 2.0}) for name in "AB"})
    (first,) = cluster.submit(judged("A", 1.0))
    assert cluster.submit(judged("B"), *[judged("A", 1.0)] * 3) == []
    cluster.now += 9.0
    cluster.handle(AttemptStarted(first.action, first.attempt))
    cluster.now += 1.0
    (second,) = cluster.end(first.action)
    assert services_of(cluster, [second]) == "A", "its turn has just begun"
    cluster.now += 5.0
    assert services_of(cluster, cluster.end(second.action)) == "B"


@pytest.mark.parametrize(
    ("restores_s", "calls"),
    [((2.0, 2.0), 5), ((2.0, 20.0), 21), ((20.0, 2.0), 20), ((200.0, 200.0), 60)],
    ids=["fast", "slow for the next one", "slow for its own", "very slow"],
)
def test_a_turn_lasts_as_long_as_the_swaps_around_it(restores_s: tuple[float, float], calls: int) -> None:
    """Five seconds at least and a minute at most; an eviction takes one."""
    cluster = Cluster(rule=None)
    times = dict(zip("AB", restores_s, strict=True))
    cluster.join(
        "a", 1, {name: ServedModel((1,), 1, 60.0, restore_s={1: s}, evict_s={1: 1.0}) for name, s in times.items()}
    )
    (granted,) = cluster.submit(judged("A", 1.0))
    cluster.handle(AttemptStarted(granted.action, granted.attempt))
    assert cluster.submit(judged("B"), *[judged("A", 1.0)] * 80) == []
    order = "A"
    while order[-1] == "A":
        cluster.now += 1.0
        (granted,) = cluster.end(granted.action)
        order += services_of(cluster, [granted])
    assert order == "A" * calls + "B"


def test_a_head_that_waits_for_a_chunk_leaves_the_slots_of_other_engines() -> None:
    """C waits for GPU 0, which is free first. A has seven more slots on GPU 1."""
    cluster = Cluster(rule=None)
    services = {"A": ServedModel((1,), 8, 60.0), "B": ServedModel((1,), 1, 60.0), "C": ServedModel((1,), 1, 60.0)}
    cluster.join("a", 2, services)
    (busy, _) = cluster.submit(judged("B", 20.0), judged("A", 50.0))
    assert cluster.submit(judged("C")) == []
    assert services_of(cluster, cluster.submit(*[judged("A", 30.0)] * 8)) == "A" * 7
    assert services_of(cluster, cluster.end(busy.action)) == "C"


@pytest.mark.parametrize("few", [FEW, 0], ids=["few nodes", "many nodes"])
def test_a_head_waits_for_the_node_whose_chunk_is_free_first(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """A has engines with two slots on two nodes. The next slot is free on b, and the next GPU is free on a."""
    monkeypatch.setattr(node_choice, "FEW", few)
    cluster = Cluster(rule=None)
    for name in "ab":
        cluster.join(name, 1, {service: ServedModel((1,), 2, 60.0) for service in "AB"})
    long = cluster.submit(judged("A", 10.0), judged("A", 12.0), judged("A", 11.0), judged("A", 30.0))
    assert [one.node for one in long] == ["a", "a", "b", "b"]
    cluster.now += 1.0
    assert cluster.submit(judged("B"), *[judged("A", 15.0)] * 3) == []
    cluster.now += 9.0
    assert cluster.end(long[0].action) == [], "a is kept free"
    cluster.now += 1.0
    assert services_of(cluster, cluster.end(long[2].action)) == "A", "b is not"
    cluster.now += 1.0
    assert services_of(cluster, cluster.end(long[1].action)) == "B"


def test_a_head_does_not_wait_for_a_call_that_takes_far_longer_than_expected() -> None:
    """A has engines on two nodes, and new calls all the time. The chunk of the long call is never free."""
    cluster = Cluster(rule=None)
    for name in "ab":
        cluster.join(name, 1, {service: ServedModel((1,), 2, 60.0) for service in "AB"})
    long, *others = cluster.submit(*[judged("A", 5.0)] * 4)
    ends_s = {one.action: cluster.now + 2.0 + number for number, one in enumerate(others)}
    cluster.now += 1.0
    assert cluster.submit(judged("B")) == []
    order = ""
    while "B" not in order and cluster.now < 1090.0:
        cluster.now += 1.0
        for name in [name for name, end_s in ends_s.items() if end_s <= cluster.now]:
            del ends_s[name]
            granted = cluster.end(name) + cluster.submit(judged("A", 5.0))
            ends_s |= {one.action: cluster.now + 5.0 for one in granted}
            order += services_of(cluster, granted)
    assert "B" in order, "the other engine has drained"
    assert long.action in cluster.running


def test_a_head_does_not_wait_for_a_gpu_beyond_the_share_of_its_node() -> None:
    """The node owns one of two GPUs, and A has two slots there."""
    cluster = Cluster(rule=None)
    cluster.join("a", 2, {service: ServedModel((1,), 2, 60.0) for service in "AB"})
    cluster.handle(PlannerChecked(True), TargetReceived("gpus@cpu", 1))
    first, second = cluster.submit(judged("A", 10.0), judged("A", 12.0), batch="many")
    cluster.now += 1.0
    assert cluster.submit(judged("B"), *[judged("A", 15.0)] * 3, batch="many") == []
    cluster.now += 9.0
    assert cluster.end(first.action) == [], "the GPU that A has is kept free"
    cluster.now += 2.0
    assert services_of(cluster, cluster.end(second.action)) == "B"


def test_a_node_owns_more_gpus_if_the_ones_it_owns_cannot_have_the_chunk_of_a_head() -> None:
    """A has GPU 0 and new calls all the time, and B has too little memory there."""
    cluster = Cluster(rule=None)
    elsewhere = ServedModel((1,), 1, 60.0, unusable=frozenset({Chunk(0, 1)}))
    cluster.join("a", 2, {"A": ServedModel((1,), 2, 20.0), "B": elsewhere}, memory_gb=(24.0, 80.0))
    cluster.handle(PlannerChecked(True), TargetReceived("gpus@cpu", 1))
    assert services_of(cluster, cluster.submit(judged("A"), batch="many")) == "A"
    assert services_of(cluster, cluster.submit(judged("B"), batch="many")) == "B"


def test_a_node_owns_enough_for_a_wide_chunk_beside_scattered_gpus() -> None:
    """A node owns two of four GPUs. A has one of each pair, and new calls all the time."""
    cluster = Cluster(rule=None)
    cluster.join("a", 4, {"A": ServedModel((1,), 2, 20.0), "P": ServedModel((2,), 1, 20.0)})
    cluster.submit(*[judged("A")] * 8, batch="many")
    cluster.handle(PlannerChecked(True), TargetReceived("gpus@cpu", 2))
    for name in [name for name, (_, one) in cluster.running.items() if one.numbers[0] in (0, 2)]:
        cluster.end(name)
    cluster.now += 1.0
    order = services_of(cluster, cluster.submit(call("P", 2, duration_s=4.0), batch="many"))
    while "P" not in order and cluster.now < 1060.0:
        cluster.now += 1.0
        first = next(iter(cluster.running))
        order += services_of(cluster, cluster.end(first) + cluster.submit(judged("A"), batch="many"))
    assert "P" in order


def test_a_head_that_waits_for_the_last_of_an_engines_calls_is_not_overtaken_there() -> None:
    """The chunk that is free first has an engine with free slots: longer calls would delay the head."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {"A": ServedModel((1,), 8, 60.0), "C": ServedModel((1,), 1, 60.0)})
    (first,) = cluster.submit(judged("A", 20.0))
    assert cluster.submit(judged("C")) == []
    assert services_of(cluster, cluster.submit(judged("A", 5.0))) == "A", "it ends earlier"
    assert cluster.submit(judged("A", 30.0)) == []
    cluster.now += 20.0
    cluster.end(first.action)
    assert services_of(cluster, cluster.end(next(iter(cluster.running)))) == "C"


def test_a_head_that_waits_for_a_quota_leaves_the_other_slots_of_its_engine() -> None:
    cluster = Cluster(rule=None)
    cluster.handle(QuotaSet("api", QuotaLimits((1.0,))))
    cluster.join("a", 1, {"A": ServedModel((1,), 4, 60.0)})
    assert len(of_tenant(cluster, "bob", judged("A", 8.0, api=1.0))) == 1
    assert of_tenant(cluster, "bob", judged("A", 8.0, api=1.0)) == []
    assert len(of_tenant(cluster, "ada", *[judged("A", 90.0)] * 4)) == 2, "one slot is kept for bob's next call"


def test_heads_that_sleep_for_quotas_reserve_on_the_nodes_of_their_own_services() -> None:
    """Both wait for quotas, and their services are on different nodes. Calls without quotas go past them."""
    cluster = Cluster(rule=None)
    for name in ("one", "two"):
        cluster.handle(QuotaSet(name, QuotaLimits((1.0,))))
    cluster.join("a", 2, {"A": ServedModel((1,), 1, 60.0)})
    cluster.join("b", 2, {"B": ServedModel((1,), 1, 60.0)})
    cluster.submit(judged("A", 50.0, one=1.0), judged("B", 50.0, two=1.0))
    assert cluster.submit(judged("A", 50.0, one=1.0)) == []
    assert cluster.submit(judged("B", 50.0, two=1.0)) == []
    cluster.now += 1.0
    assert len(cluster.dispatcher.cluster.queues.lanes.asleep) == 2
    for name in "ABAB":
        cluster.submit(judged(name, 1.0))
        cluster.now += 0.1
    cluster.go_to(cluster.now + 2.0)
    assert sorted(services_of(cluster, [one for _, one in cluster.running.values()])) == ["A", "B"]
    assert len(cluster.begun_s) == 6


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_with_quotas_keep_the_laws_and_end(seed: int) -> None:
    """Services on unlike nodes, several slots, two tenants, quotas, failed engines; the dispatcher checks each step."""
    rng = Random(seed)
    cluster = Cluster(rule=rng.choice([None, "priced"]))
    for name in ("one", "two"):
        cluster.handle(QuotaSet(name, rng.choice([QuotaLimits((2.0,)), QuotaLimits((), (Rate(3.0, 1.0),))])))
    names = "ABCDE"
    on_node = {node: rng.sample(names, 3) for node in "ab"} | {"c": list(names)}

    def report(node: str) -> dict[str, ServedModel]:
        unusable = frozenset({Chunk(rng.randrange(2), 1)}) if rng.random() < 0.3 else frozenset[Chunk]()
        slow = ServedModel((1, 2), 1, 40.0, unusable=unusable, restore_s={1: 2.0, 2: 1.0}, evict_s={1: 0.5, 2: 0.5})
        return {name: dataclasses.replace(slow, concurrency=rng.choice([1, 4])) for name in on_node[node]}

    for node in on_node:
        cluster.join(node, 2, report(node))
    for _ in range(250):
        event = rng.random()
        if event < 0.5:
            made = call(rng.choice(names), *rng.choice([(1,), (1,), (2,), (1, 2)]), duration_s=rng.uniform(0.2, 6.0))
            wanted = rng.sample(["one", "two"], rng.choice([0, 0, 1, 2]))
            of_tenant(cluster, rng.choice(["ada", "bob"]), replace(made, quotas=dict.fromkeys(wanted, 1.0)))
        elif event < 0.6 and cluster.running:
            name = rng.choice(sorted(cluster.running))
            cluster.handle(AttemptStarted(name, cluster.running[name][1].attempt))
        elif event < 0.65:
            node = rng.choice(sorted(on_node))
            cluster.handle(ServicesReported(node, "1", "gpus", report(node), (80.0, 80.0), (), ()))
        else:
            cluster.go_to(cluster.now + rng.choice([0.1, 0.5, 2.0]))
    for node in on_node:
        services = {name: ServedModel((1, 2), 4, 40.0) for name in on_node[node]}
        cluster.handle(ServicesReported(node, "1", "gpus", services, (80.0, 80.0), (), ()))
    for _ in range(600):
        cluster.go_to(cluster.now + 1.0)
    assert len(cluster.begun_s) == len(cluster.works), "every call was granted"


def beside_another(duration_s: float = 1.0, calls: int = 40) -> Cluster:
    """A GPU with A and B. A uses its two slots, and more calls of it wait behind one of B."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {name: ServedModel((1,), 2, 30.0, restore_s={1: 2.0}) for name in "AB"})
    cluster.submit(judged("B", 1.0))
    cluster.go_to(cluster.now + 1.0)
    assert services_of(cluster, cluster.submit(judged("A", duration_s))) == "A"
    cluster.now += duration_s / 2
    assert services_of(cluster, cluster.submit(judged("A", duration_s))) == "A"
    assert cluster.submit(judged("B", duration_s), *[judged("A", duration_s)] * calls) == []
    return cluster


def order_of(cluster: Cluster, last: str) -> str:
    """Let calls end in turn until this service is granted; return the services of the grants."""
    order = ""
    while last not in order:
        end_s, name = min((end_s, name) for name, (end_s, _) in cluster.running.items())
        cluster.now = end_s
        order += services_of(cluster, cluster.end(name))
    return order


@pytest.mark.parametrize(("duration_s", "calls"), [(1.0, 5), (10.0, 5), (25.0, 1)], ids=["short", "long", "very long"])
def test_a_service_beside_another_one_has_a_turn_of_four_calls(duration_s: float, calls: int) -> None:
    """Nothing has to be restored between their turns. A minute at most."""
    assert order_of(beside_another(duration_s), "B") == "A" * calls + "B"


def test_a_turn_beside_another_service_ends_without_calls() -> None:
    cluster = beside_another(calls=0)
    assert order_of(cluster, "B") == "B"


def test_a_service_that_was_used_for_long_leaves_as_soon_as_its_calls_have_ended() -> None:
    """Its turn has passed before a call of the other service comes."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {name: ServedModel((1,), 2, 30.0) for name in "AB"})
    cluster.submit(judged("B", 1.0))
    cluster.go_to(cluster.now + 1.0)
    cluster.submit(judged("A"))
    for _ in range(9):
        cluster.now += 2.0
        assert services_of(cluster, cluster.submit(judged("A"))) == "A"
        cluster.now += 2.0
        cluster.end(min(cluster.running, key=cluster.begun_s.__getitem__))
    assert services_of(cluster, cluster.submit(judged("A"), judged("B"), judged("A"), judged("A"))) == "A"
    assert order_of(cluster, "B") == "B"


def two_nodes(call_s: float) -> Cluster:
    """A and B have an engine on node a, where A is called. C has one on b: its turn is over, and its calls wait."""
    cluster = Cluster(rule=None)
    services = {name: ServedModel((1,), 1, 30.0, restore_s={1: 3.0}) for name in "AB"}
    other = ServedModel((1,), 1, 60.0, restore_s={1: 3.0}, evict_s={1: 1.0})
    cluster.join("a", 1, services)
    cluster.submit(judged("B", 1.0))
    cluster.go_to(cluster.now + 4.0)
    cluster.submit(judged("A", call_s))
    cluster.join("b", 1, {**services, "C": other})
    (first,) = cluster.submit(judged("C", 1.0))
    assert first.node == "b"
    cluster.handle(AttemptStarted(first.action, first.attempt))
    for _ in range(8):
        assert cluster.submit(judged("C", 1.0)) == []
        cluster.now += 1.0
        (first,) = cluster.end(first.action)
    assert cluster.submit(judged("B", 1.0), judged("C", 1.0)) == []
    cluster.now += 1.0
    return cluster


def test_a_call_waits_for_its_own_engine_before_it_evicts_a_service_with_work() -> None:
    cluster = two_nodes(call_s=14.0)
    last = max(cluster.running)
    assert services_of(cluster, cluster.end(last)) == "C"
    (granted,) = cluster.end(min(cluster.running))
    assert (cluster.works[granted.action].service, granted.node) == ("B", "a")


def test_a_call_that_spares_a_service_does_not_reserve_its_gpu() -> None:
    """B waits for GPU 0, where A is called. C keeps GPU 1 of that node, and its call ends later than the one of A."""
    cluster = Cluster(rule=None)
    first, second = frozenset({Chunk(0, 1)}), frozenset({Chunk(1, 1)})
    services = {name: ServedModel((1,), 1, 30.0, first, restore_s={1: 3.0}) for name in "AB"}
    services["C"] = ServedModel((1,), 1, 60.0, second, restore_s={1: 3.0}, evict_s={1: 1.0})
    cluster.join("a", 2, services)
    _, called = cluster.submit(judged("A", 20.0), judged("C", 14.0))
    cluster.now += 13.0
    assert cluster.submit(judged("B", 1.0), judged("C", 10.0)) == []
    cluster.now += 1.0
    assert services_of(cluster, cluster.end(called.action)) == "C"


def test_a_call_does_not_wait_for_its_own_engine_for_longer_than_two_swaps() -> None:
    cluster = two_nodes(call_s=30.0)
    (granted,) = cluster.end(max(cluster.running))
    assert (cluster.works[granted.action].service, granted.node) == ("B", "b")


def test_a_call_takes_the_gpu_of_a_service_without_work_before_that_of_one_with_work() -> None:
    """A rare call of C has evicted A. Calls of A wait for the end of that call, and B keeps its GPU."""
    cluster = Cluster(rule=None)
    for name in "ab":
        cluster.join(name, 1, {one: ServedModel((1,), 1, 60.0, restore_s={1: 30.0}) for one in "ABC"})
    first, _ = cluster.submit(judged("A", 1.0), judged("B", 1.0))
    cluster.go_to(cluster.now + 100.0)
    cluster.submit(judged("B", 1.0))
    (rare,) = cluster.submit(judged("C", 1.0))
    assert rare.node == first.node
    cluster.now += 1.0
    assert cluster.submit(judged("A", 1.0), judged("B", 1.0)) == []
    assert services_of(cluster, cluster.end(next(one for one in cluster.running if one != rare.action))) == "B"
    cluster.now += 30.0
    (granted,) = cluster.end(rare.action)
    assert (cluster.works[granted.action].service, granted.node) == ("A", rare.node)


def test_a_call_waits_for_a_minute_at_most_if_each_gpu_has_work_again_when_it_is_free() -> None:
    """Callers of B and C send their next call with the answer of the last one, so neither service has work for long."""
    cluster = Cluster(rule=None)
    for name in "ab":
        cluster.join(name, 1, {one: ServedModel((1,), 1, 60.0, restore_s={1: 40.0}) for one in "ABC"})
    cluster.submit(judged("B", 4.0), judged("C", 3.0))
    cluster.now += 100.0
    cluster.submit(judged("A"))
    began_s, granted = cluster.now, ""
    while "A" not in granted:
        assert cluster.now < began_s + 80.0, "it waits for ever"
        end_s, name = min((end_s, name) for name, (end_s, _) in cluster.running.items())
        cluster.now = max(cluster.now, end_s)
        _, one = cluster.running.pop(name)
        ended = Ended(name, one.node, one.attempt, one.stage, AttemptResult("ok", True), 0.0, 1.0, one.units)
        following = f"r{len(cluster.works)}"
        cluster.works[following] = cluster.works[name]
        new = request(following, cluster.works[name], at_s=cluster.now, seq=len(cluster.works))
        granted = services_of(cluster, cluster.handle(AttemptsEnded((ended,)), RequestsSubmitted((new,))))


def test_a_tenant_is_charged_for_its_part_of_an_engine_that_calls_share() -> None:
    """Eight calls of ada share a GPU for 10 s, and bob's call has one for 40 s. So ada's next call goes first."""
    cluster = Cluster(rule=None)
    cluster.join("a", 2, {"A": ServedModel((1,), 8, 60.0), "B": ServedModel((1,), 1, 60.0)})
    cluster.join("p", 1, {"P": ServedModel((1,), 1, 60.0)})
    (first,) = of_tenant(cluster, "eve", judged("P", 10.0), judged("P", 10.0))
    assert len(of_tenant(cluster, "ada", *[judged("A", 10.0)] * 8)) == 8
    assert len(of_tenant(cluster, "bob", judged("B", 40.0))) == 1
    assert of_tenant(cluster, "bob", judged("P", 1.0)) == of_tenant(cluster, "ada", judged("P", 1.0)) == []
    (second,) = cluster.end(first.action)
    (third,) = cluster.end(second.action)
    assert (second.action, third.action) == ("r1", "r12"), "eve's, then ada's"


def test_work_beside_a_reserved_chunk_leaves_the_share_that_it_needs() -> None:
    """The node owns two of four GPUs. P waits for GPUs 0 and 1, of which one is idle; C would have GPU 2."""
    cluster = Cluster(rule=None)
    low = frozenset({Chunk(0, 1), Chunk(1, 1)})
    services = {"A": ServedModel((1,), 1, 60.0), "P": ServedModel((2,), 1, 60.0)}
    cluster.join("a", 4, {**services, "C": ServedModel((1,), 1, 60.0, unusable=low)})
    cluster.handle(PlannerChecked(True), TargetReceived("gpus@cpu", 2))
    (first,) = cluster.submit(judged("A", 20.0), batch="many")
    assert first.numbers == (0,)
    cluster.now += 1.0
    assert cluster.submit(call("P", 2, duration_s=4.0), judged("C", 50.0), batch="many") == []
    assert services_of(cluster, cluster.end(first.action)) == "P"


def test_a_node_owns_more_gpus_if_others_have_scattered_since_an_earlier_head() -> None:
    """The first call of P has had enough with two of four GPUs. For the second one A has GPUs of both pairs."""
    cluster = Cluster(rule=None)
    odd = frozenset({Chunk(1, 1), Chunk(3, 1)})
    cluster.join("a", 4, {"A": ServedModel((1,), 1, 60.0, unusable=odd), "P": ServedModel((2,), 1, 20.0)})
    cluster.handle(PlannerChecked(True), TargetReceived("gpus@cpu", 2))
    (first,) = cluster.submit(judged("A", 10.0), batch="many")
    assert cluster.submit(call("P", 2, duration_s=4.0), batch="many") == []
    (wide,) = cluster.end(first.action)
    cluster.end(wide.action)
    assert {one.numbers for one in cluster.submit(judged("A", 10.0), judged("A", 10.0), batch="many")} == {(0,), (2,)}
    assert cluster.submit(call("P", 2, duration_s=4.0), batch="many") == []
    node = cluster.dispatcher.node("a")
    assert node is not None
    assert node.owned["gpus"] == 3
