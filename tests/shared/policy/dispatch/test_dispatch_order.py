"""Order of grants: earliest batch first, age, reservation and backfill, tenants by weight."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import EstimateReceived, InventoryReported
from shared.policy.model.formulation import Request
from tests.shared.policy.dispatch.virtual_time import VirtualTimeMesh
from tests.shared.policy.strategies import CORES, SLOTS, SPECS, joined, node, request, work


def of_batch(batch: str, number: int, *, timeout_s: float = 10.0) -> list[Request]:
    return [request(f"{batch}-{at}", work(timeout_s=timeout_s), seq=at, batch=batch) for at in range(number)]


def batches_in_order(mesh: VirtualTimeMesh) -> list[str]:
    return [batch for batch, _ in groupby(name.split("-")[0] for name in mesh.started)]


# ---- earliest batch first --------------------------------------------------------------------------------------------


@given(st.permutations([*of_batch("slow", 4, timeout_s=50.0), *of_batch("soon", 4, timeout_s=5.0)]), st.integers(1, 4))
def test_the_earliest_batch_is_served_first_whatever_the_submission_order(arrivals: list[Request], cores: int) -> None:
    mesh = VirtualTimeMesh([], lambda _: 1.0)
    mesh.submit(*(replace(one, arrival=(0, at)) for at, one in enumerate(arrivals)))
    join(mesh, cores)
    mesh.run()
    assert batches_in_order(mesh) == ["soon", "slow"]


def join(mesh: VirtualTimeMesh, cores: int) -> None:
    """A node joins after all submissions."""
    joining = node("n", {"cores": cores})
    mesh.do(mesh.dispatcher.handle(mesh.now, joined(joining)))
    mesh.do(mesh.dispatcher.handle(mesh.now, InventoryReported("n", joining.incarnation, {})))


def test_a_new_estimate_moves_the_queued_requests_of_a_batch() -> None:
    mesh = VirtualTimeMesh([], lambda _: 1.0)
    mesh.submit(*of_batch("first", 3, timeout_s=10.0), *of_batch("second", 3, timeout_s=20.0))
    mesh.dispatcher.handle(0.0, EstimateReceived("second", 5.0))
    join(mesh, 1)
    mesh.run(1.5)
    mesh.dispatcher.handle(mesh.now, EstimateReceived("first", 1.0))
    mesh.run()
    assert batches_in_order(mesh) == ["second", "first", "second"]


def test_an_estimate_that_came_before_the_batch_counts() -> None:
    mesh = VirtualTimeMesh([], lambda _: 1.0)
    mesh.dispatcher.handle(0.0, EstimateReceived("late", 500.0))
    mesh.submit(*of_batch("late", 2, timeout_s=1.0), *of_batch("soon", 2, timeout_s=20.0))
    join(mesh, 1)
    mesh.run()
    assert batches_in_order(mesh) == ["soon", "late"]


def test_within_a_batch_the_trajectory_priority_decides_then_the_arrival() -> None:
    mesh = VirtualTimeMesh([], lambda _: 1.0)
    ranked = [("b-0", 2.0), ("b-1", 1.0), ("b-2", 1.0), ("b-3", 0.0)]
    mesh.submit(*(request(name, seq=at, batch="b", priority=p) for at, (name, p) in enumerate(ranked)))
    join(mesh, 1)
    mesh.run()
    assert list(mesh.started) == ["b-3", "b-1", "b-2", "b-0"]


def test_a_later_stage_keeps_the_place_of_its_batch() -> None:
    mesh = VirtualTimeMesh([node("n", {"cores": 1})], lambda _: 1.0)
    two = (work(timeout_s=5.0, name="compile"), work(timeout_s=5.0, name="run"))
    mesh.submit(request("old-0", *two, batch="old"))
    mesh.submit(*of_batch("new", 3, timeout_s=30.0))
    mesh.run()
    assert list(mesh.started) == ["old-0", "new-0", "new-1", "new-2"]


# ---- age -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound_s", [60.0, 3600.0])
def test_a_stream_of_newer_requests_never_starves_an_older_one(bound_s: float) -> None:
    """The old batch has timeouts of 1e5 s, each newer one of a second. Age wins because of the bound."""
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.cluster.queues.batches.bound_s = bound_s
    mesh = VirtualTimeMesh([node("n", {"cores": 1})], lambda _: 10.0, dispatcher)
    mesh.submit(request("other-0", batch="other"))
    mesh.submit(request("old-0", work(timeout_s=1e5), batch="old"))
    for at in range(1, 500):
        mesh.at(10.0 * at - 5.0, request(f"new{at}-0", work(timeout_s=1.0), at_s=10.0 * at - 5.0, batch=f"n{at}"))
    mesh.run()
    assert mesh.started["old-0"] <= bound_s + 20.0


@given(st.lists(st.floats(0.1, 3.0), min_size=30, max_size=60), st.lists(st.floats(-3.0, 3.0), min_size=8, max_size=8))
def test_a_big_head_is_not_starved_by_small_work_whatever_is_predicted(
    lasts: list[float], wrong_by: list[float]
) -> None:
    """Small work of every predicted length comes faster than it can be served; none lasts more than 6 s in truth.

    The head needs the whole node. What runs when it becomes head, or passes it because it was predicted to end before,
    ends within 6 s of its start; after the reserved moment nothing passes any more. The reserved moment is at most one
    predicted length (3 s) away.
    """
    names = [f"s{at}" for at in range(len(lasts))]
    truth = {n: max(0.05, min(6.0, lasts[i] + wrong_by[i % len(wrong_by)])) for i, n in enumerate(names)}
    mesh = VirtualTimeMesh([node("n", {"cores": 4})], lambda one: truth.get(one.id, 1.0))
    for at, name in enumerate(names):  # a task each, so that each has a prediction of its own: 10 % of its timeout
        arrives_s = at * 0.05
        small = request(name, work(timeout_s=10 * lasts[at]), at_s=arrives_s, task=name, batch=name)
        mesh.at(arrives_s, small)
    mesh.at(0.2, request("big", work(CORES, {"cores": 4}, timeout_s=0.001), at_s=0.2, batch="big", task="big"))
    mesh.run()
    assert mesh.started["big"] <= 0.2 + 3.0 + 6.0


# ---- backfill --------------------------------------------------------------------------------------------------------


def test_only_work_that_ends_before_the_reservation_overtakes_a_blocked_head() -> None:
    """Two cores run until 10. The head needs three of four; two are free."""
    mesh = VirtualTimeMesh([node("n", {"cores": 4})], lambda one: one.stages[0].timeout_s / 10)
    mesh.submit(request("running", work(CORES, {"cores": 2}, timeout_s=100.0), task="running"))
    mesh.submit(request("head", work(CORES, {"cores": 3}, timeout_s=1.0), task="head", batch="head"))
    mesh.submit(request("long", work(timeout_s=110.0), seq=1, task="long", batch="long"))
    mesh.submit(request("short", work(timeout_s=90.0), seq=2, task="short", batch="short"))
    assert list(mesh.started) == ["running", "short"]
    mesh.run()
    assert mesh.started["head"] == 10.0
    assert mesh.started["long"] == 10.0


def test_a_reservation_on_one_node_does_not_idle_another() -> None:
    """The head can only run on `judges`; the node that does not offer its kind continues with long work."""
    nodes = [node("judges", {"cores": 1}, kinds="judge run"), node("plain", {"cores": 1})]
    mesh = VirtualTimeMesh(nodes, lambda _: 5.0)
    judge = work(kind="judge", timeout_s=1.0)
    mesh.submit(request("judging", judge), request("head", judge, seq=1), request("long", work(timeout_s=900.0)))
    assert set(mesh.started) == {"judging", "long"}
    mesh.run()
    assert mesh.started["head"] == 5.0


def test_a_head_waits_for_all_of_its_resources_and_reserves_them_all() -> None:
    """Cores are free, memory is not: work that needs memory and ends too late must not overtake, whatever its pool."""
    roomy = node("n", {"cores": 4, "slots": 4, "leases": 4, "memory": 8})
    mesh = VirtualTimeMesh([roomy], lambda one: one.stages[0].timeout_s / 10)
    mesh.submit(request("running", work(CORES, {"cores": 1, "memory": 6}, timeout_s=100.0), task="running"))
    mesh.submit(request("head", work(CORES, {"cores": 1, "memory": 4}, timeout_s=1.0), seq=1, task="head"))
    mesh.submit(request("hungry", work(SLOTS, {"slots": 1, "memory": 2}, timeout_s=200.0), seq=2, task="hungry"))
    mesh.submit(request("modest", work("leases@cpu", timeout_s=200.0), seq=3, task="modest"))
    assert set(mesh.started) == {"running", "modest"}
    mesh.run()
    assert mesh.started["head"] == 10.0


def test_a_head_waits_for_units_that_other_pools_hold() -> None:
    """The head waits for work granted through another pool: its end counts, so nothing overtakes."""
    mesh = VirtualTimeMesh([node("n", {"cores": 4, "slots": 4})], lambda one: one.stages[0].timeout_s / 10)
    mesh.submit(request("running", work(SLOTS, {"slots": 1, "cores": 2}, timeout_s=100.0), task="running"))
    mesh.submit(request("head", work(CORES, {"cores": 4}, timeout_s=1.0), task="head"))
    mesh.submit(request("long", work(timeout_s=1000.0), seq=1, task="long"))
    mesh.run(0.0)
    assert list(mesh.started) == ["running"]
    mesh.run()
    assert mesh.started["head"] == 10.0


def test_work_that_no_node_can_take_does_not_block_the_queue() -> None:
    mesh = VirtualTimeMesh([node("n", {"cores": 1})], lambda _: 1.0)
    mesh.submit(request("running"))
    alien = work(kind="cobol", timeout_s=0.1)
    mesh.submit(*(request(f"alien-{at}", alien, seq=at, batch="alien", deadline_s=50.0) for at in range(100)))
    mesh.submit(request("plain", work(timeout_s=1000.0), batch="plain"))
    mesh.run()
    assert mesh.started["plain"] == 1.0
    mesh.tick(50.0)
    assert set(mesh.answered.values()) == {"ok", "expired"}


def test_stuck_work_runs_when_a_node_that_can_take_it_joins() -> None:
    mesh = VirtualTimeMesh([node("n")], lambda _: 1.0)
    mesh.submit(request("alien", work(kind="cobol"), batch="b"))
    mesh.dispatcher.handle(0.0, EstimateReceived("b", 5.0))
    joining = node("m", kinds="cobol")
    mesh.do(mesh.dispatcher.handle(1.0, joined(joining)))
    mesh.do(mesh.dispatcher.handle(1.0, InventoryReported("m", joining.incarnation, {})))
    assert "alien" in mesh.started


# ---- tenants ---------------------------------------------------------------------------------------------------------


@given(st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.integers(1, 4), st.floats(0.2, 2.0), st.floats(0.2, 2.0))
def test_tenants_share_by_weight_while_both_have_work(weight: float, cores: int, ada_s: float, bob_s: float) -> None:
    """Granted unit-seconds over weight never differ by more than the largest grant over its weight.

    The tenant furthest behind is next, so a tenant ahead got ahead by its last grant alone.
    """
    mesh = VirtualTimeMesh([], lambda one: ada_s if one.tenant == "ada" else bob_s)
    mesh.submit(*(
        request(f"{who}-{at}", work(timeout_s=10 * (ada_s if who == "ada" else bob_s)), seq=at, tenant=who, task=who)
        for at in range(80) for who in ("ada", "bob")
    ))  # fmt: skip
    mesh.dispatcher.cluster.queues.weigh({"ada": weight})
    join(mesh, cores)
    got = {"ada": 0.0, "bob": 0.0}
    mesh.run()
    for name in list(mesh.started)[:80]:
        tenant = name.split("-")[0]
        got[tenant] += ada_s / weight if tenant == "ada" else bob_s
        assert abs(got["ada"] - got["bob"]) <= max(ada_s / weight, bob_s) * (1 + 1e-6)


def test_a_tenant_that_was_idle_does_not_save_up() -> None:
    mesh = VirtualTimeMesh([node("n", {"cores": 1})], lambda _: 1.0)
    mesh.submit(*(request(f"ada-{at}", work(), seq=at, tenant="ada") for at in range(100)))
    mesh.run(50.5)
    mesh.submit(*(request(f"bob-{at}", work(), at_s=50.0, seq=at, tenant="bob") for at in range(100)))
    mesh.run(70.5)
    since = [name.split("-")[0] for name, at in mesh.started.items() if at > 50.5]
    assert abs(since.count("bob") - since.count("ada")) <= 1


def test_a_big_head_keeps_its_turn_while_others_pass() -> None:
    """Ada's big request waits for the whole node; her own small work and Bob's must not cost her the reservation.

    Her small work passes (it ends before the reserved moment) and is charged to her; without her turn being kept, Bob
    would then be the one furthest behind, his long work would start, and the reserved moment move away, for ever.
    """
    mesh = VirtualTimeMesh([node("n", {"cores": 4})], lambda one: one.stages[0].timeout_s / 10)
    for at in range(2000):
        when = at * 0.05
        mesh.at(when, request(f"tiny{at}", work(timeout_s=2.0), at_s=when, tenant="ada", task="tiny"))
        if at % 5 == 0:
            mesh.at(when, request(f"long{at}", work(timeout_s=30.0), at_s=when, tenant="bob", task="long"))
    big = request("big", work(CORES, {"cores": 4}, timeout_s=1.0), at_s=5.0, tenant="ada", task="big", batch="big")
    mesh.dispatcher.handle(0.0, EstimateReceived("big", 0.0))
    mesh.at(5.0, big)
    mesh.run(100.0)
    assert mesh.started["big"] < 15.0
