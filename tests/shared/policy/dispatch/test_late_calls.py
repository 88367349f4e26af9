"""Calls of model services that have waited for long behind others: reservations, turns of tenants, and shares."""

from __future__ import annotations

from copy import deepcopy

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.blocked import Blocked
from shared.policy.dispatch.late_calls import LateCalls, overtake
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import PlannerChecked, TargetReceived
from shared.policy.dispatch.swaps import Swaps
from shared.policy.model.chunks import ServedModel
from tests.shared.policy.dispatch.test_call_waits import judged, of_tenant, services_of
from tests.shared.policy.dispatch.test_engine_places import Cluster, call


@pytest.mark.parametrize(
    ("service", "duration_s", "waited_s"), [("E", 5.0, 60.0), ("H", 5.0, 60.0), ("E", 30.0, 120.0)]
)
def test_the_first_call_of_a_tenant_has_a_turn_although_its_later_calls_use_its_share(
    service: str, duration_s: float, waited_s: float
) -> None:
    """Calls of ada follow each other on node a, and bob's on node b, for which another call of ada waits. Hers use
    twice as many GPUs. It has a turn after a minute, or after four of its expected durations.
    """
    cluster = Cluster(rule=None)
    cluster.join("a", 4, {"C": ServedModel((1,), 2, 60.0)})
    cluster.join("b", 2, {name: ServedModel((2,), 1, 60.0) for name in "EH"})
    of_tenant(cluster, "bob", *[call("H", 2, duration_s=1.0)] * 3)
    of_tenant(cluster, "ada", *[judged("C", 12.0)] * 8)
    began_s, waits = cluster.now, f"r{len(cluster.works)}"
    of_tenant(cluster, "ada", call(service, 2, duration_s=duration_s))
    while waits not in cluster.running:
        assert cluster.now < began_s + 200.0, "it waits for ever"
        cluster.now, ended = min((end_s, one) for one, (end_s, _) in cluster.running.items())
        work = cluster.works[ended]
        cluster.end(ended)
        of_tenant(cluster, "ada" if work.service == "C" else "bob", work)
    assert waited_s <= cluster.now - began_s <= waited_s + 30.0


@pytest.mark.parametrize("waited_s", [60.0, 59.0])
def test_a_call_that_has_waited_for_a_minute_behind_others_reserves_its_chunk_too(waited_s: float) -> None:
    """Only node a serves P, for which many calls wait. On b A is called all the time, and B waits for its chunk."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {"P": ServedModel((1,), 1, 60.0)})
    cluster.join("b", 1, {service: ServedModel((1,), 2, 60.0) for service in "AB"})
    cluster.submit(judged("P", 500.0), judged("A", 10.0), *[judged("P", 500.0)] * 3)
    cluster.now += 5.0
    cluster.submit(judged("A", 70.0), judged("B"))
    cluster.now += waited_s
    a_call = next(one for one in cluster.running if cluster.works[one].duration_s == 10.0)
    granted = services_of(cluster, cluster.end(a_call) + cluster.submit(judged("A", 70.0)))
    assert granted == ("" if waited_s == 60.0 else "A")
    cluster.now += 30.0
    last = next(one for one in cluster.running if cluster.works[one].service == "A")
    if waited_s == 60.0:
        assert services_of(cluster, cluster.end(last)) == "B"


@pytest.mark.parametrize("other", [(), (0,)])
def test_another_node_owns_a_gpu_if_a_released_one_does_not_come_back(other: tuple[int, ...]) -> None:
    """The target is one GPU, which is node a's. Its hook fails; the GPU of node b may be released, too."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {"A": ServedModel((1,), 1, 60.0)}, released=(0,))
    cluster.join("b", 1, {"A": ServedModel((1,), 1, 60.0)}, released=other)
    cluster.handle(PlannerChecked(True), TargetReceived("gpus@cpu", 1))
    assert cluster.submit(judged("A"), batch="many") == []
    owned = []
    for waited_s in (59.0, 61.0):
        cluster.go_to(1000.0 + waited_s)
        owned.append({name: node.share("gpus") for name, node in cluster.dispatcher.cluster.nodes.present.items()})
    assert owned[0] == {"a": 1, "b": 0}
    assert owned[1]["b"] == 1
    if other:
        assert not cluster.running
        services = {"A": ServedModel((1,), 1, 60.0)}
        (granted,) = cluster.handle(ServicesReported("b", "1", "gpus", services, (80.0,), (), ()))
        assert granted.node == "b"
    else:
        assert [one.node for _, one in cluster.running.values()] == ["b"]


@pytest.mark.parametrize(
    ("name", "shared", "is_promised"), [("r3", "", True), ("r2", "", False), ("r3", "api", False), ("plain", "", False)]
)
def test_a_turn_is_promised_for_a_call_that_later_ones_have_overtaken(
    name: str, shared: str, is_promised: bool
) -> None:
    """r2 is ada's first call, and bob has the turn. `api` is the quota whose amounts tenants share in the lane."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {"A": ServedModel((1,), 1, 60.0)})
    of_tenant(cluster, "bob", judged("A", 900.0), judged("A"))
    of_tenant(cluster, "ada", judged("A"), judged("A"))
    queues = cluster.dispatcher.cluster.queues
    lane, action = queues.pool("gpus@cpu"), queues.queued["r3" if name == "plain" else name]
    lane.shared = shared
    if name == "plain":
        action.work = replace(action.work, service="")
    for waited_s in (0.0, 59.0, 60.0):
        overtake(cluster.dispatcher.cluster, lane, action, cluster.now + waited_s)
        promised = deepcopy(lane.queue)
        promised.charge("bob", 1000.0)
        promised.charge("ada", 2000.0)
        assert promised.head() == ("r2" if is_promised and waited_s == 60.0 else "r1")
    queues.queued["r2"].move("granted")
    queues.queued["r2"].move("queued")
    assert queues.queued["r2"].overtaken_s == 0.0, "a later wait counts from its own beginning"


def test_three_services_reserve_behind_a_head() -> None:
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {name: ServedModel((1,), 1, 60.0) for name in "ABCDEP"})
    cluster.submit(judged("P", 900.0))
    assert cluster.submit(*[judged(name) for name in "PABBCDE"]) == []
    queues, blocked = cluster.dispatcher.cluster.queues, list[Blocked]()
    late = LateCalls(Swaps(cluster.dispatcher.cluster, cluster.now + 60.0), blocked, {"P"})
    for action in list(queues.queued.values()):
        late.refused(queues.pool("gpus@cpu"), queues.pool("gpus@cpu"), action)
    assert [one.head.work.service for one in blocked] == ["A", "B", "C"]


def test_a_new_tenant_is_not_charged_by_its_timeouts_if_the_service_is_known() -> None:
    """Calls take a second, and their limit is 1,000 s. A tenth of it would be a hundred turns of ada before bob's."""
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {"A": ServedModel((1,), 1, 60.0)})
    unknown = replace(judged("A"), duration_s=None)
    of_tenant(cluster, "ada", unknown)
    cluster.now += 1.0
    cluster.end("r0")
    of_tenant(cluster, "ada", *[unknown] * 8)
    of_tenant(cluster, "bob", *[unknown] * 8)
    ended = list[str]()
    for _ in range(16):
        cluster.now += 1.0
        ended += cluster.running
        cluster.end(ended[-1])
    of_bob = {f"r{number}" for number in range(9, 17)}
    assert [len(of_bob.intersection(ended[:count])) for count in (5, 9, 16)] == [2, 4, 8]
