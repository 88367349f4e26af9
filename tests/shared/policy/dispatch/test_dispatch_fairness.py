"""Overtaking between lanes, tenants, memory and overdue work: histories in which the wrong action once overtook."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.start_predictor import StartPredictor
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    EnvironmentEndReported,
    InventoryReported,
    NodeSeen,
    PlannerChecked,
    TargetReceived,
    TickPassed,
    TrajectoryClosed,
)
from shared.policy.elastic.scheduling import ElasticRules
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import AnswerAction, Command, EnvironmentNeed, Grant, Request, SetShare, Work
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import SPECS, joined, node, reported, request, submitted, work

KINDS = frozenset({"run", "act", "runtime.local"})
NEARLY_LINEAR = Elasticity("amdahl", serial=0.02)
BUSY = replace(work(units={"cores": 3}, timeout_s=60.0), duration_s=50.0)
TOOL = replace(work(kind="act", timeout_s=60.0), duration_s=1.0)


def leading(cores: int, memory: int = 100, names: Iterable[str] = ("a",)) -> Dispatcher:
    dispatcher = Dispatcher(specs=SPECS)
    for name in names:
        capacity = {"cores": cores, "memory_mb": memory}
        dispatcher.handle(0.0, joined(Node(name, "1", "cpu", capacity, KINDS)))
        dispatcher.handle(0.0, InventoryReported(name, "1", {}))
    return dispatcher


def act(name: str, trajectory: str, at_s: float, *, memory: int = 1, done: Work = TOOL, tenant: str = "ada") -> Request:
    made = request(name, done, at_s=at_s, tenant=tenant)
    return replace(made, need=EnvironmentNeed(trajectory, "runtime.local", {"memory_mb": memory}))


def scaled(most: int, seconds: float | None, kind: str = "run") -> Work:
    amounts = tuple(range(1, most + 1))
    return replace(work(kind=kind, timeout_s=600.0), amounts=amounts, elasticity=NEARLY_LINEAR, duration_s=seconds)


def granted(dispatcher: Dispatcher, commands: Iterable[Command]) -> list[Grant]:
    dispatcher.check()
    return [one for one in commands if isinstance(one, Grant)]


def end(dispatcher: Dispatcher, now: float, grant: Grant, seconds: float = 1.0) -> list[Command]:
    return dispatcher.handle(
        now, reported(Ended(grant.action, grant.node, grant.attempt, 0, AttemptResult("ok", True), execution_s=seconds))
    )


def settled(dispatcher: Dispatcher, count: int) -> None:
    """Begin this many trajectories (t0, t1 ...), each with an idle environment."""
    for at in range(count):
        (first,) = granted(dispatcher, dispatcher.handle(0.0, submitted(act(f"first{at}", f"t{at}", 0.0))))
        end(dispatcher, 0.0, first)


def test_the_order_of_a_pool_holds_over_its_lanes() -> None:
    dispatcher = leading(4)
    settled(dispatcher, 4)
    (busy,) = granted(
        dispatcher, dispatcher.handle(1.0, submitted(request("busy", work(units={"cores": 4}), at_s=1.0)))
    )
    bound = [act(f"bound{at}", f"t{at}", at_s) for at, at_s in enumerate((2.0, 90.0, 91.0, 92.0))]
    plain = [request(f"plain{at}", at_s=3.0, seq=at) for at in range(3)]
    dispatcher.handle(93.0, submitted(*bound, *plain))
    now_free = granted(dispatcher, end(dispatcher, 100.0, busy))
    assert [one.action for one in now_free] == ["bound0", "plain0", "plain1", "plain2"]


def test_small_environments_do_not_overtake_a_large_one_forever() -> None:
    dispatcher = leading(64)
    small = [act(f"s{at}", f"s{at}", 0.0, memory=20) for at in range(4)]
    begun = granted(dispatcher, dispatcher.handle(0.0, submitted(*small)))
    assert len(begun) == 4
    assert granted(dispatcher, dispatcher.handle(1.0, submitted(act("large", "large", 1.0, memory=60)))) == []
    assert granted(dispatcher, dispatcher.handle(2.0, submitted(act("new", "new", 2.0, memory=20)))) == []
    started = []
    for at, one in enumerate(begun[:3]):
        now = 3.0 + at
        end(dispatcher, now, one)
        dispatcher.handle(now, TrajectoryClosed(one.action))
        started += granted(
            dispatcher, dispatcher.handle(now, EnvironmentEndReported("a", "1", one.action, "closed", ""))
        )
    assert [one.action for one in started] == ["large", "new"]


def test_memory_that_a_large_environment_waits_for_is_kept_on_one_node_alone() -> None:
    dispatcher = leading(64, names=("a", "b"))
    granted(
        dispatcher, dispatcher.handle(0.0, submitted(*(act(f"s{at}", f"s{at}", 0.0, memory=50) for at in range(2))))
    )
    assert granted(dispatcher, dispatcher.handle(1.0, submitted(act("large", "large", 1.0, memory=60)))) == []
    (new,) = granted(dispatcher, dispatcher.handle(2.0, submitted(act("new", "new", 2.0, memory=20))))
    assert new.node == "b"
    settled_there = granted(dispatcher, dispatcher.handle(3.0, submitted(request("plain", at_s=3.0))))
    assert len(settled_there) == 1  # what begins no environment is not held up anywhere


def test_work_that_fits_is_found_behind_any_amount_of_another_tenants_work() -> None:
    dispatcher = leading(4)
    (busy,) = granted(dispatcher, dispatcher.handle(0.0, submitted(request("busy", BUSY))))
    wide = [request(f"wide{at}", work(units={"cores": 4}), at_s=1.0, seq=at) for at in range(200)]
    dispatcher.handle(1.0, submitted(*wide))
    short = replace(work(timeout_s=1.0), duration_s=0.01)
    (small,) = granted(dispatcher, dispatcher.handle(2.0, submitted(request("small", short, at_s=2.0, tenant="bob"))))
    assert (busy.action, small.action) == ("busy", "small")


@pytest.mark.parametrize("overdue", [1, 8])
def test_nothing_waits_for_the_units_of_overdue_work(overdue: int) -> None:
    """An action expected to take 1 s has taken 100 s; elastic work starts on the free units."""
    dispatcher = leading(32)
    dispatcher.handle(
        0.0, submitted(*(request(f"r{at}", replace(work(timeout_s=3600.0), duration_s=1.0)) for at in range(overdue)))
    )
    (wide,) = granted(dispatcher, dispatcher.handle(100.0, submitted(request("wide", scaled(32, 60.0), at_s=100.0))))
    assert wide.units["cores"] == 32 - overdue


def test_of_two_that_wait_for_more_of_a_node_one_keeps_its_units() -> None:
    """The second reservation would begin now, for units that the first action already waits for."""
    dispatcher = leading(32)
    settled(dispatcher, 5)
    dispatcher.handle(
        0.0, submitted(request("busy", replace(work(units={"cores": 28}, timeout_s=60.0), duration_s=10.0)))
    )
    assert granted(dispatcher, dispatcher.handle(1.0, submitted(request("first", scaled(32, 300.0), at_s=1.0)))) == []
    second = act("second", "t0", 2.0, done=scaled(32, 300.0, "act"))
    assert granted(dispatcher, dispatcher.handle(2.0, submitted(second))) == []
    tools = [act(f"tool{at}", f"t{at}", 3.0) for at in range(1, 5)]
    assert len(granted(dispatcher, dispatcher.handle(3.0, submitted(*tools)))) == 4


def test_an_evicted_action_keeps_its_turn() -> None:
    dispatcher = Dispatcher(DispatchConfig(elastic=ElasticRules(rule="paper", waits_for_units=False)), SPECS)
    whole = replace(work(timeout_s=6000.0), amounts=(1, 2, 3, 4), elasticity=Elasticity("power", exponent=1.0))
    three = [request("abc"[at], replace(whole, duration_s=10.0), tenant=f"t{at}", seq=at) for at in range(3)]
    big = request("big", replace(work(units={"cores": 4}, timeout_s=60.0), duration_s=5.0), tenant="t9", seq=9)
    dispatcher.handle(0.0, submitted(*three, big))
    dispatcher.handle(0.0, joined(node("n", {"cores": 4})))
    first = granted(dispatcher, dispatcher.handle(0.0, InventoryReported("n", "1", {})))
    order = [one.action for one in first]
    assert order != ["a", "b", "c"]  # one was evicted
    for now, grant in enumerate(first, start=1):
        order += [one.action for one in granted(dispatcher, end(dispatcher, float(now), grant))]
    assert order == ["a", "b", "c"]


def test_an_action_that_begins_an_environment_needs_its_own_memory_too() -> None:
    dispatcher = leading(4, memory=100)
    own = replace(work(units={"cores": 1, "memory_mb": 60}, kind="act"), duration_s=1.0)
    assert granted(dispatcher, dispatcher.handle(0.0, submitted(act("too much", "t", 0.0, memory=50, done=own)))) == []
    (fits,) = granted(dispatcher, dispatcher.handle(0.0, submitted(act("fits", "u", 0.0, memory=40, done=own))))
    assert fits.action == "fits"


def test_the_spread_of_elastic_work_is_that_on_its_fewest_units() -> None:
    dispatcher = leading(16)
    for seconds in (700.0, 900.0, 800.0):
        dispatcher.cluster.durations.learned.learn(("ada", "t", "run scaled"), seconds)
    four = replace(work(units={"cores": 4}, timeout_s=600.0), amounts=(4, 8), elasticity=NEARLY_LINEAR)
    dispatcher.handle(0.0, submitted(request("r", four)))
    action = dispatcher.registry.actions["r"]
    single_s, spread_s = (
        dispatcher.cluster.durations.single(action),
        dispatcher.cluster.durations.learned.spread(action.duration_key),
    )
    assert single_s is not None
    assert spread_s is not None
    assert dispatcher.cluster.durations.expect_at_most(action) == pytest.approx(
        NEARLY_LINEAR.duration(single_s + spread_s, 4)
    )


def test_without_a_planner_a_full_node_does_not_change_the_shares_of_others() -> None:
    dispatcher = leading(4, names=("a", "b", "c"))
    settled(dispatcher, 15)
    dispatcher.handle(0.0, TargetReceived("cores@cpu", 4))
    dispatcher.handle(0.0, PlannerChecked(alive=False))
    long = replace(work(kind="act", timeout_s=600.0), duration_s=500.0)
    here = [
        name for name, placement in sorted(dispatcher.cluster.environments.placements.items()) if placement.node == "a"
    ]
    assert len(here) == 5
    dispatcher.handle(40.0, submitted(*(act(f"acts in {name}", name, 40.0, done=long) for name in here)))
    for now in (50.0, 60.0, 70.0, 80.0):
        for name in dispatcher.cluster.nodes.present:
            dispatcher.handle(now, NodeSeen(name, "1"))
        dispatcher.handle(now, TickPassed())
    assert len(dispatcher.cluster.queues.queued) == 1
    for at in range(4):
        commands = dispatcher.handle(81.0 + at, submitted(request(f"r{at}", at_s=81.0 + at, batch="b")))
        (grant,) = granted(dispatcher, commands)
        commands += end(dispatcher, 81.5 + at, grant)
        assert not any(isinstance(one, SetShare) for one in commands)


def test_pools_without_demand_are_deleted() -> None:
    dispatcher = leading(4)
    strange = [request(f"r{at}", work("cores@nowhere" + str(at)), deadline_s=5.0, seq=at) for at in range(50)]
    dispatcher.handle(0.0, submitted(*strange))
    assert len(dispatcher.cluster.queues.pools) >= 50
    for now in (6.0, 17.0, 28.0, 39.0):
        dispatcher.handle(now, NodeSeen("a", "1"))
        dispatcher.handle(now, TickPassed())
        dispatcher.check()
    assert not any("nowhere" in name for name in dispatcher.cluster.queues.pools)


# ---- a new leader ----------------------------------------------------------------------------------------------------


def widened() -> tuple[Dispatcher, Request, Grant, float]:
    """A new leader, with a grant on many cores known from the store, and the duration there."""
    old = leading(16)
    asked = request("r", scaled(16, None))
    old.cluster.durations.learned.learn(("ada", "t", "run scaled"), 320.0)
    (grant,) = granted(old, old.handle(0.0, submitted(asked)))
    assert grant.units["cores"] > 4
    new = Dispatcher(specs=SPECS)
    new.handle(0.0, submitted(asked))
    new.handle(0.0, ActionRestored("r", 0, grant.attempt, (), grant.node))
    new.handle(0.0, joined(Node("a", "1", "cpu", {"cores": 16, "memory_mb": 100}, KINDS)))
    return new, asked, grant, NEARLY_LINEAR.duration(320.0, grant.units["cores"])


def test_adopted_elastic_work_is_expected_to_end_by_its_granted_units() -> None:
    new, _, grant, lasts_s = widened()
    new.cluster.durations.learned.learn(("ada", "t", "run scaled"), 320.0)
    new.handle(0.0, InventoryReported("a", "1", {"r": HeldGrant(0, grant.attempt, 0.0, grant.units)}))
    assert new.registry.actions["r"].expected_end_s == pytest.approx(lasts_s)


def test_work_that_ended_before_the_inventory_is_learned_by_its_granted_units() -> None:
    new, _, grant, lasts_s = widened()
    ended = Ended("r", "a", grant.attempt, 0, AttemptResult("ok", True), execution_s=lasts_s, units=grant.units)
    (answer,) = [one for one in new.handle(40.0, reported(ended)) if isinstance(one, AnswerAction)]
    assert answer.acts[0].units == grant.units["cores"]
    assert new.cluster.durations.learned.single(("ada", "t", "run scaled")) == pytest.approx(320.0)


# ---- rejection of late starts ----------------------------------------------------------------------------------------


def test_new_requests_of_one_sort_share_the_count_of_granted_units(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading(4)
    counted: list[str] = []
    count = StartPredictor._count

    def noting(self: StartPredictor, resource: str, nodes: list[Node]) -> object:
        counted.append(resource)
        return count(self, resource, nodes)

    monkeypatch.setattr(StartPredictor, "_count", noting)
    dispatcher.handle(0.0, submitted(*(request(f"r{at}", seq=at, start_by_s=5.0) for at in range(20))))
    assert counted == ["cores"]
