"""Shares that nodes own, and requests rejected because they would start too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    InventoryReported,
    PlannerChecked,
    TargetReceived,
)
from shared.policy.model.formulation import AnswerAction, Grant, Request, SetShare
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from tests.shared.policy.dispatch.virtual_time import VirtualTimeMesh
from tests.shared.policy.strategies import CORES, SPECS, joined, node, reported, request, submitted, work


def owned(mesh: VirtualTimeMesh) -> int:
    return sum(units for (_, resource), units in mesh.shares.items() if resource == "cores")


def nodes(*cores: int) -> list[Node]:
    return [node(f"n{at}", {"cores": count}) for at, count in enumerate(cores)]


# ---- shares ----------------------------------------------------------------------------------------------------------


def test_before_the_first_target_all_units_are_used_and_no_share_is_sent() -> None:
    mesh = VirtualTimeMesh(nodes(2, 2), lambda _: 1.0)
    mesh.submit(*(request(f"a{at}", seq=at) for at in range(6)))
    assert len(mesh.started) == 4
    assert mesh.shares == {}


def test_a_node_of_another_manager_gets_no_share() -> None:
    """It is of the same class, and has none of the pool's resource."""
    mesh = VirtualTimeMesh([*nodes(2), node("calls", {"calls": 8})], lambda _: 1.0)
    for units in (2, 0, 1):
        mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, units)))
    assert {name for name, _ in mesh.shares} == {"n0"}


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_shares_add_up_to_the_target_within_what_runs_and_what_there_is(cores: list[int], targets: list[int]) -> None:
    mesh = VirtualTimeMesh(nodes(*cores), lambda _: 1.0)
    mesh.submit(*(request(f"b{at}", seq=at, batch="b") for at in range(200)))
    for target in targets:
        mesh.do(mesh.dispatcher.handle(mesh.now, TargetReceived(CORES, target)))
        used = sum(one.used.get("cores", 0) for one in mesh.dispatcher.cluster.nodes.present.values())
        assert owned(mesh) == min(sum(cores), max(target, used, 1))
        assert used <= owned(mesh)
        mesh.run(mesh.now + 1.0)


def test_with_a_target_no_more_than_it_is_executed() -> None:
    mesh = VirtualTimeMesh(nodes(4, 4), lambda _: 1.0)
    mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, 3)))
    mesh.submit(*(request(f"b{at}", seq=at, batch="b") for at in range(10)))
    assert len(mesh.started) == 3
    mesh.run()
    assert sorted(mesh.started.values()) == [0.0] * 3 + [1.0] * 3 + [2.0] * 3 + [3.0]


def test_a_target_of_nothing_delays_but_never_starves() -> None:
    mesh = VirtualTimeMesh(nodes(4), lambda _: 1.0)
    mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, 0)))
    mesh.submit(*(request(f"b{at}", seq=at, batch="b") for at in range(3)))
    mesh.run()
    assert sorted(mesh.started.values()) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("target", [0, 4, 5])
def test_a_head_that_is_wider_than_every_even_share_gets_a_share_that_holds_it(target: int) -> None:
    """Two nodes of four cores share the target evenly; a request for all four of one node must run all the same."""
    mesh = VirtualTimeMesh(nodes(4, 4), lambda _: 1.0)
    mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, target)))
    mesh.submit(request("wide", work(CORES, {"cores": 4}), batch="b"))
    mesh.run()
    assert mesh.answered == {"wide": "ok"}


def test_work_outside_batches_grows_the_share_at_once_and_shrinks_it_after_the_linger() -> None:
    dispatcher = Dispatcher(DispatchConfig(linger_s=10.0), SPECS)
    mesh = VirtualTimeMesh(nodes(8), lambda _: 1.0, dispatcher)
    mesh.do(dispatcher.handle(0.0, TargetReceived(CORES, 2)))
    assert owned(mesh) == 2
    mesh.submit(*(request(f"a{at}", seq=at) for at in range(4)))
    assert owned(mesh) == 6
    assert len(mesh.started) == 4
    mesh.tick(5.0)
    assert len(mesh.answered) == 4
    assert owned(mesh) == 6, "units are kept, so that the next call has a warm worker"
    mesh.tick(10.0)
    mesh.tick(19.0)
    assert owned(mesh) == 6, "at least one window after the end of the work"
    mesh.tick(20.0)
    assert owned(mesh) == 2


def test_a_node_receives_its_share_even_if_that_is_its_whole_capacity() -> None:
    """A former leader may have set another share."""
    mesh = VirtualTimeMesh(nodes(4), lambda _: 1.0)
    commands = mesh.dispatcher.handle(0.0, TargetReceived(CORES, 9))
    assert commands == [SetShare("n0", "cores", 4)]
    assert mesh.dispatcher.handle(0.0, TargetReceived(CORES, 9)) == []


def test_a_node_that_joins_takes_its_part_of_the_target() -> None:
    mesh = VirtualTimeMesh(nodes(4), lambda _: 1.0)
    mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, 4)))
    joining = node("n1", {"cores": 4})
    mesh.do(mesh.dispatcher.handle(0.0, joined(joining)))
    assert mesh.shares == {("n0", "cores"): 4}
    mesh.do(mesh.dispatcher.handle(0.0, InventoryReported("n1", joining.incarnation, {})))
    assert mesh.shares == {("n0", "cores"): 2, ("n1", "cores"): 2}


# ---- without a planner -----------------------------------------------------------------------------------------------


widths = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "b"])), min_size=1, max_size=12)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 9), widths)
def test_without_a_planner_nothing_queues_because_a_target_is_missing(
    cores: list[int], target: int, jobs: list[tuple[int, str]]
) -> None:
    """Whatever the target, work starts as early as if all units were owned."""

    def starts(target: int | None) -> dict[str, float]:
        mesh = VirtualTimeMesh(nodes(*cores), lambda _: 1.0)
        if target is not None:
            mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, target)))
            mesh.do(mesh.dispatcher.handle(0.0, PlannerChecked(alive=False)))
        for at, (units, batch) in enumerate(jobs):
            mesh.at(at / 4, request(f"r{at}", work(CORES, {"cores": units}), seq=at, at_s=at / 4, batch=batch))
        mesh.run()
        return mesh.started

    waits = any(units > max(cores) for units, _ in jobs)
    if len(cores) == 1 and not waits:
        assert starts(target) == starts(None)
    else:  # on several nodes, shares decide which of them work is packed on
        assert starts(target).keys() == starts(None).keys()


def test_without_a_planner_a_batch_runs_on_all_its_work_takes_and_then_on_its_target_again() -> None:
    mesh = VirtualTimeMesh(nodes(4, 4), lambda _: 1.0)
    mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, 1)))
    mesh.submit(*(request(f"b{at}", seq=at, batch="b") for at in range(5)))
    assert (len(mesh.started), owned(mesh)) == (1, 1)
    mesh.do(mesh.dispatcher.handle(0.0, PlannerChecked(alive=False)))
    assert (len(mesh.started), owned(mesh)) == (5, 5)
    mesh.submit(*(request(f"c{at}", seq=9 + at, batch="b") for at in range(9)))
    assert (len(mesh.started), owned(mesh)) == (8, 8)
    mesh.run()
    assert sorted(mesh.started.values()) == [0.0] * 8 + [1.0] * 6
    mesh.do(mesh.dispatcher.handle(mesh.now, PlannerChecked(alive=True)))
    assert owned(mesh) == 1, "targets apply again"


def test_without_a_planner_units_are_released_some_time_after_their_work() -> None:
    dispatcher = Dispatcher(DispatchConfig(linger_s=10.0), SPECS)
    mesh = VirtualTimeMesh(nodes(8), lambda _: 1.0, dispatcher)
    mesh.do(dispatcher.handle(0.0, TargetReceived(CORES, 2)))
    mesh.do(dispatcher.handle(0.0, PlannerChecked(alive=False)))
    mesh.submit(*(request(f"b{at}", seq=at, batch="b") for at in range(5)))
    mesh.tick(9.0)
    assert (len(mesh.answered), owned(mesh)) == (5, 5), "the next requests have warm workers"
    mesh.tick(10.0)
    mesh.tick(20.0)
    assert owned(mesh) == 2, "the target stays what it was"


def test_without_any_target_an_absent_planner_changes_nothing() -> None:
    mesh = VirtualTimeMesh(nodes(2), lambda _: 1.0)
    mesh.do(mesh.dispatcher.handle(0.0, PlannerChecked(alive=False)))
    mesh.submit(*(request(f"b{at}", seq=at, batch="b") for at in range(3)))
    assert (len(mesh.started), mesh.shares) == (2, {})


def test_a_head_that_the_even_spread_has_no_room_for_gets_all_there_is() -> None:
    """One core of each node is busy, so of five units wanted none has four; with all of them owned one node does."""
    mesh = VirtualTimeMesh(nodes(4, 5), lambda _: 10.0)
    mesh.do(mesh.dispatcher.handle(0.0, TargetReceived(CORES, 0)))
    mesh.do(mesh.dispatcher.handle(0.0, PlannerChecked(alive=False)))
    mesh.submit(request("a", batch="b"), request("b", seq=1, batch="b"))
    mesh.submit(request("wide", work(CORES, {"cores": 4}), seq=2, batch="b"))
    assert set(mesh.started) == {"a", "b", "wide"}
    assert owned(mesh) == 9


# ---- admission -------------------------------------------------------------------------------------------------------


def ready(cores: int) -> Dispatcher:
    mesh = VirtualTimeMesh(nodes(cores), lambda _: 1.0)
    return mesh.dispatcher


@given(
    st.integers(1, 6),
    st.lists(st.integers(1, 6), max_size=8),
    st.integers(1, 6),
    st.floats(-5.0, 5.0),
    st.booleans(),
)
def test_a_request_that_could_start_at_once_is_never_rejected(
    cores: int, before: list[int], units: int, start_by_s: float, in_batch: bool
) -> None:
    """A new request that would be granted at once without `start_by_s` is not rejected, whatever waits."""

    def end_of(start_by: float | None) -> str:
        dispatcher = ready(cores)
        for at, count in enumerate(before):
            dispatcher.handle(0.0, submitted(request(f"b{at}", work(CORES, {"cores": count}), seq=at, batch="b")))
        new_request = request("new", work(CORES, {"cores": units}, timeout_s=1.0), seq=99, start_by_s=start_by,
                           batch="n" if in_batch else "")  # fmt: skip
        commands = dispatcher.handle(0.0, submitted(new_request))
        dispatcher.check()
        return next((type(one).__name__ for one in commands if isinstance(one, Grant | AnswerAction)
                     and one.action == "new"), "queued")  # fmt: skip

    freely, asking = end_of(None), end_of(start_by_s)
    assert freely in ("Grant", "queued")
    assert asking == "Grant" if freely == "Grant" else asking in ("AnswerAction", "queued")


def test_a_request_whose_predicted_start_is_too_late_is_rejected() -> None:
    """Two cores, ten requests of an expected 1 s each: the last starts after 4 s, so a new request after 5 s."""
    dispatcher = ready(2)
    dispatcher.handle(0.0, submitted(*(request(f"a{at}", seq=at) for at in range(10))))
    (refused,) = dispatcher.handle(0.0, submitted(request("hasty", work(timeout_s=20.0), seq=10, start_by_s=4.9)))
    assert isinstance(refused, AnswerAction)
    assert (refused.action, refused.ended) == ("hasty", "expired")
    assert dispatcher.handle(0.0, submitted(request("patient", work(timeout_s=20.0), seq=11, start_by_s=5.1))) == []
    assert set(dispatcher.registry.actions) == {f"a{at}" for at in range(10)} | {"patient"}
    dispatcher.check()


def test_one_burst_of_slow_programs_does_not_close_the_pool_to_those_after_it() -> None:
    """Programs of a task reached their limit of 20 s; its next hundred wait for two cores, and have 60 s to start."""
    dispatcher = ready(2)
    for at in range(20):
        now = 20.0 * at
        (grant,) = dispatcher.handle(now, submitted(request(f"slow{at}", work(timeout_s=20.0), at_s=now, seq=at)))
        assert isinstance(grant, Grant)
        met = Ended(grant.action, grant.node, grant.attempt, 0, AttemptResult("timeout"), execution_s=20.0)
        dispatcher.handle(now + 20.0, reported(met))
    now = 400.0

    def new_request(name: str, seq: int) -> Request:
        return request(name, work(timeout_s=20.0), at_s=now, seq=seq, start_by_s=now + 60.0)

    commands = dispatcher.handle(now, submitted(*(new_request(f"next{at}", 100 + at) for at in range(40))))
    assert [one for one in commands if isinstance(one, AnswerAction)] == []
    declared = replace(work(timeout_s=20.0), duration_s=20.0)
    dispatcher.handle(now, submitted(*(request(f"long{at}", declared, at_s=now, seq=200 + at) for at in range(6))))
    (refused,) = dispatcher.handle(now, submitted(new_request("hasty", 300)))
    assert isinstance(refused, AnswerAction), "six that are declared to take 20 s each are ahead"


def test_only_work_that_goes_first_delays_a_new_request() -> None:
    """A thousand requests of a batch that is expected later do not make an urgent one too late."""
    dispatcher = ready(1)
    dispatcher.handle(
        0.0, submitted(*(request(f"b{at}", work(timeout_s=100.0), seq=at, batch="b") for at in range(1000)))
    )
    assert dispatcher.handle(0.0, submitted(request("urgent", work(timeout_s=1.0), seq=1000, start_by_s=15.0))) == []
    assert "urgent" in dispatcher.registry.actions


def test_a_rejection_leaves_no_reservation() -> None:
    """A rejected request for many units leaves no reservation."""
    dispatcher = ready(2)
    dispatcher.handle(0.0, submitted(request("running", work(timeout_s=1000.0))))
    wide = request("wide", work(CORES, {"cores": 2}, timeout_s=0.1), seq=1, start_by_s=1.0)
    narrow = request("narrow", work(timeout_s=5000.0), seq=2)
    commands = dispatcher.handle(0.0, submitted(wide, narrow))
    assert [type(one) for one in commands] == [AnswerAction, Grant]


def test_a_new_leader_rejects_nothing_before_an_inventory() -> None:
    """Requests in the journal may run already, started in time under the former leader."""
    dispatcher = Dispatcher(specs=SPECS)
    assert dispatcher.handle(100.0, submitted(request("running", start_by_s=10.0))) == []
    dispatcher.handle(100.0, ActionRestored("running", 0, 1, (), "n0"))
    assert dispatcher.registry.actions["running"].state == "granted"
