"""Shares of work that waits for quotas: nodes own units for what the quotas let start."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import AmountRestored, QuotaSet
from shared.policy.dispatch.stimuli import PlannerChecked, TargetReceived
from shared.policy.model.formulation import Request
from shared.policy.model.quotas import LEARNED, QuotaHold, QuotaLimits, Rate
from shared.policy.resources.quota_demand import QuotaDemand, room
from shared.policy.resources.quota_estimates import Estimate
from shared.policy.resources.quotas import Quotas
from tests.shared.policy.dispatch.virtual_time import VirtualTimeMesh
from tests.shared.policy.strategies import CORES, SPECS, node, request, work


def taking(name: str, amount: float = 1.0, *, cores: int = 1, seq: int = 0, batch: str = "") -> Request:
    return request(name, replace(work(units={"cores": cores}), quotas={"search": amount}), seq=seq, batch=batch)


def mesh_of(limits: QuotaLimits, *cores: int, target: int = 0, lasts_s: float = 1.0) -> VirtualTimeMesh:
    dispatcher = Dispatcher(DispatchConfig(linger_s=10.0), SPECS)
    nodes = [node(f"n{at}", {"cores": count}) for at, count in enumerate(cores)]
    mesh = VirtualTimeMesh(nodes, lambda _: lasts_s, dispatcher)
    mesh.do(dispatcher.handle(0.0, QuotaSet("search", limits)))
    mesh.do(dispatcher.handle(0.0, TargetReceived(CORES, target)))
    return mesh


def owned(mesh: VirtualTimeMesh) -> int:
    return sum(units for (_, resource), units in mesh.shares.items() if resource == "cores")


def wake(mesh: VirtualTimeMesh) -> None:
    """Let the next event happen, as the leader does."""
    next_s = min([mesh.dispatcher.next_wake_s, *(at_s for at_s, _, _ in mesh._agenda)])
    mesh.tick(next_s)
    mesh.dispatcher.check()


@pytest.mark.parametrize(("planned", "batch"), [(True, ""), (False, ""), (False, "b")])
def test_a_pool_owns_units_for_what_its_quota_lets_run(planned: bool, batch: str) -> None:
    mesh = mesh_of(QuotaLimits((3.0,)), 8, 8)
    mesh.do(mesh.dispatcher.handle(0.0, PlannerChecked(planned)))
    mesh.submit(*(taking(f"a{at}", seq=at, batch=batch) for at in range(50)))
    most = owned(mesh)
    assert len(mesh.started) == 3
    while len(mesh.answered) < 50:
        wake(mesh)
        most = max(most, owned(mesh))
    assert most == 3
    assert sorted(mesh.started.values()) == [float(at // 3) for at in range(50)]


def test_a_pool_owns_units_for_what_its_quota_lets_run_of_learned_amounts() -> None:
    mesh = mesh_of(QuotaLimits((6.0,)), 8, 8)
    mesh.do(mesh.dispatcher.handle(0.0, AmountRestored(("ada", "t", "search"), Estimate.of((2.0,)))))
    mesh.submit(*(taking(f"a{at}", LEARNED, seq=at) for at in range(50)))
    assert (owned(mesh), len(mesh.started)) == (3, 3)


@pytest.mark.parametrize("planned", [True, False])
def test_a_refilled_quota_gets_its_units_at_once(planned: bool) -> None:
    """A burst of four, then one a second: two nodes own what runs, also right after a refill."""
    mesh = mesh_of(QuotaLimits((), (Rate(4.0, 4.0),)), 3, 3, lasts_s=2.0)
    mesh.do(mesh.dispatcher.handle(0.0, PlannerChecked(planned)))
    mesh.submit(*(taking(f"a{at}", seq=at) for at in range(12)))
    most = owned(mesh)
    mesh.tick(0.0)  # the next one is within the same linger window, so it updates no shares
    while len(mesh.answered) < 12:
        wake(mesh)
        most = max(most, owned(mesh))
    assert sorted(mesh.started.values()) == [0.0] * 4 + [float(at) for at in range(1, 9)]
    assert most <= 5


def test_work_with_and_without_quotas_adds_up() -> None:
    mesh = mesh_of(QuotaLimits((2.0,)), 16)
    mesh.submit(*(taking(f"q{at}", seq=at) for at in range(9)), *(request(f"p{at}", seq=20 + at) for at in range(5)))
    assert (owned(mesh), len(mesh.started)) == (7, 7)


def test_stuck_work_owns_nothing_until_its_quota_exists() -> None:
    mesh = mesh_of(QuotaLimits((2.0,)), 8)
    mesh.do(mesh.dispatcher.handle(0.0, QuotaSet("search", None)))
    mesh.submit(*(taking(f"a{at}", seq=at) for at in range(9)))
    assert owned(mesh) == 0
    mesh.do(mesh.dispatcher.handle(1.0, QuotaSet("search", QuotaLimits((4.0,)))))
    assert (owned(mesh), len(mesh.started)) == (4, 4)


def test_plenty_of_a_quota_is_as_good_as_none() -> None:
    mesh = mesh_of(QuotaLimits((99.0,)), 4, 4)
    mesh.submit(*(taking(f"a{at}", seq=at) for at in range(20)))
    assert (owned(mesh), len(mesh.started)) == (8, 8)


def test_what_has_left_the_queue_is_not_counted() -> None:
    demand = QuotaDemand()
    demand.add({"a": 0.1, "b": 1.0}, 2, outside=True)
    demand.add({"b": 1.0, "a": 0.2}, 1, outside=False)
    assert [one.counts for one in demand.sets.values()] == [(2, 3, 2)]
    demand.remove({"a": 0.1, "b": 1.0}, 2, outside=True)
    demand.remove({"b": 1.0, "a": 0.2}, 1, outside=False)
    assert not demand.sets


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0]), st.integers(1, 3), st.booleans()), min_size=1, max_size=8),
    st.sampled_from([0.0, 1.0, 2.0, 5.0, 99.0]),
)
def test_startable_units_cover_the_mean_action(drawn: list[tuple[float, int, bool]], free: float) -> None:
    """All start if all fit; none if none does; else the part that fits by mean amounts."""
    quotas, demand = Quotas({"q": QuotaLimits((free,))}), QuotaDemand()
    for amount, wide, outside in drawn:
        demand.add({"q": amount}, wide, outside=outside)
    units, beyond = demand.startable_units(quotas, 0.0)
    total, needed = sum(one for _, one, _ in drawn), sum(amount for amount, _, _ in drawn)
    count = min(len(drawn), math.floor(free * len(drawn) / needed + 1e-9))
    assert units == math.ceil(total * count / len(drawn) - 1e-9)
    assert 0 <= beyond <= units
    assert (units == total) == (needed <= free)


def test_room_is_what_every_limit_leaves() -> None:
    rate, money = Rate(2.0, 1.0, 10.0), Rate(5.0)
    quotas = Quotas({"q": QuotaLimits((6.0,), (rate, money))})
    assert room(quotas, "q", 0.0) == 5.0
    quotas.take(QuotaHold("a", 0, 1, "n", "1", 0.0, {"q": 3.0}), 9.0)
    assert room(quotas, "q", 0.0) == 2.0
    assert room(quotas, "none", 0.0) == 0.0
