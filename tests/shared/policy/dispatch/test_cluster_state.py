"""The floor: where lives stand, what is parked, what a newcomer's start is predicted to be; and deadlines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.deadlines import COMPACT_ABOVE, Deadlines
from shared.policy.dispatch.scheduling_round import schedule
from shared.policy.dispatch.start_predictor import StartPredictor
from shared.policy.model.formulation import Grant
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import CORES, SLOTS, node, request, work


def floor_with(*nodes: Node) -> ClusterState:
    cluster = ClusterState()
    for one in nodes:
        one.ready = True
        cluster.add_node(one)
    return cluster


def queue(
    cluster: ClusterState, name: str, cores: int = 1, *, timeout_s: float = 10.0, at: int = 0, batch: str = ""
) -> ActionState:
    action = ActionState(request(name, work(CORES, {"cores": cores}, timeout_s=timeout_s), seq=at, batch=batch))
    cluster.queues.enqueue(action)
    return action


# ---- where lives stand -----------------------------------------------------------------------------------------------


def test_nodes_belong_to_the_pools_of_their_class_by_name() -> None:
    cluster = floor_with(node("b"), node("a"), Node("g", "1", "gpu", {"chunks": 8}, frozenset({"run"})))
    assert [one.name for one in cluster.nodes.of(cluster.queues.pool(CORES))] == ["a", "b"]
    assert [one.name for one in cluster.nodes.of(cluster.queues.pool("chunks@gpu"))] == ["g"]
    cluster.remove_node("a")
    assert [one.name for one in cluster.nodes.of(cluster.queues.pool(CORES))] == ["b"]


def test_a_life_goes_from_queue_to_node_and_away_and_leaves_nothing() -> None:
    cluster = floor_with(node("n"))
    action = queue(cluster, "r", 2)
    cluster.check()
    assert [type(one) for one in schedule(cluster, 1.0)] == [Grant]
    cluster.check()
    assert cluster.nodes.present["n"].used == {"cores": 2}
    cluster.release(action)
    assert (cluster.queues.queued, cluster.granted, cluster.nodes.present["n"].used) == ({}, {"n": {}}, {"cores": 0})
    assert (cluster.queues.pool(CORES).outside.units, cluster.queues.pool(CORES).queued_s) == (0, 0.0)


def test_a_disowned_life_leaves_its_units_behind_and_a_dropped_node_takes_them_along() -> None:
    cluster = floor_with(node("n"))
    action = queue(cluster, "r", 3)
    schedule(cluster, 1.0)
    cluster.orphan(action, 2.0)
    cluster.check()
    assert cluster.nodes.present["n"].used == {"cores": 3}
    assert cluster.nodes.present["n"].orphans["r"].units == {"cores": 3}
    assert cluster.remove_node("n") == []
    cluster.check()


@pytest.mark.parametrize(
    ("holding", "taken"),
    [
        (HeldGrant(0, 2, 1.0), True),
        (HeldGrant(0, 3, 1.0), True),
        (HeldGrant(0, 1, 1.0), False),
        (HeldGrant(1, 2, 1.0), False),
    ],
    ids=["same attempt", "newer attempt", "older attempt", "other stage"],
)
def test_a_node_keeps_what_it_holds_of_the_newest_attempt(holding: HeldGrant, taken: bool) -> None:
    cluster = floor_with(node("n"))
    action = ActionState(request("r", work(), work(units={"cores": 3})), attempt=2)
    cluster.queues.enqueue(action)
    assert cluster.reconcile(5.0, cluster.nodes.present["n"], action, "r", holding) is taken
    assert (action.state, action.allocated) == (("granted", True) if taken else ("queued", False))
    assert cluster.nodes.present["n"].used == {"cores": 3 if holding.stage == 1 else 1}, (
        "either way its units are taken"
    )
    assert ("r" in cluster.nodes.present["n"].orphans) is not taken


# ---- parking ---------------------------------------------------------------------------------------------------------


def test_what_no_node_can_take_is_parked_until_nodes_change() -> None:
    cluster = floor_with(node("n", {"cores": 4}))
    wide = queue(cluster, "wide", 5, batch="b")
    queue(cluster, "narrow", 1, at=1)
    commands = schedule(cluster, 1.0)
    assert [one.action for one in commands if isinstance(one, Grant)] == ["narrow"]
    assert cluster.queues.pool(CORES).parked == {"wide"}
    cluster.check()
    cluster.queues.rekey("b", 3.0)
    wider = node("w", {"cores": 5})
    wider.ready = True
    cluster.add_node(wider)
    cluster.queues.nodes_changed()
    assert cluster.queues.pool(CORES).parked == set()
    assert [one.action for one in schedule(cluster, 2.0) if isinstance(one, Grant)] == ["wide"]
    assert wide.node == "w"


def test_what_is_parked_can_be_taken_out() -> None:
    cluster = floor_with(node("n", {"cores": 4}))
    wide = queue(cluster, "wide", 5)
    schedule(cluster, 1.0)
    cluster.queues.remove(wide)
    cluster.check()
    assert cluster.queues.queued == {}


def test_without_any_node_nothing_is_parked() -> None:
    cluster = ClusterState()
    queue(cluster, "r")
    assert schedule(cluster, 1.0) == []
    assert cluster.queues.pool(CORES).parked == set()


# ---- the predicted start ---------------------------------------------------------------------------------------------


def newcomer(cores: int = 1) -> ActionState:
    return ActionState(request("new", work(CORES, {"cores": cores}, timeout_s=10.0), at_s=100.0))


def test_nothing_is_known_before_a_node_has_spoken() -> None:
    cluster = ClusterState()
    cluster.add_node(node("n"))
    assert StartPredictor(cluster, 1.0).predict(newcomer()) == float("-inf")
    assert StartPredictor(cluster, 1.0).in_time(newcomer(), 0.0)


@given(st.integers(1, 8), st.lists(st.integers(1, 4), max_size=12), st.integers(1, 4))
def test_a_newcomer_starts_after_the_work_before_it_over_the_units_there_are(
    cores: int, before: list[int], units: int
) -> None:
    """Each before it is expected to last 1 s (a tenth of its timeout); what was granted has just begun."""
    cluster = floor_with(node("n", {"cores": cores}))
    fitting = [count for count in before if count <= cores]
    for at, count in enumerate(fitting):
        queue(cluster, f"r{at}", count, at=at)
    schedule(cluster, 1.0)
    predicted = StartPredictor(cluster, 1.0).predict(newcomer(units))
    if units > cores:
        assert predicted == float("-inf"), "no node will ever take it: its deadline decides"
    elif sum(fitting) + units <= cores:
        assert predicted == 1.0
    else:
        assert predicted == pytest.approx(1.0 + sum(fitting) / cores)


@given(st.integers(1, 4), st.lists(st.integers(1, 4), max_size=12), st.floats(0.0, 8.0))
def test_counting_only_as_far_as_asked_changes_no_verdict(cores: int, before: list[int], by_s: float) -> None:
    cluster = floor_with(node("n", {"cores": cores}))
    for at, count in enumerate(before):
        queue(cluster, f"r{at}", min(count, cores), at=at)
    schedule(cluster, 1.0)
    in_full = StartPredictor(cluster, 1.0).predict(newcomer())
    assert (StartPredictor(cluster, 1.0).predict(newcomer(), by_s) > by_s) == (in_full > by_s)
    assert StartPredictor(cluster, 1.0).in_time(newcomer(), by_s) == (in_full <= by_s)


def test_other_pools_on_the_same_units_are_seen() -> None:
    cluster = floor_with(node("n", {"cores": 1, "slots": 1}))
    action = ActionState(request("r", work(SLOTS, {"slots": 1, "cores": 1}, timeout_s=100.0)))
    cluster.queues.enqueue(action)
    schedule(cluster, 1.0)
    assert StartPredictor(cluster, 1.0).predict(newcomer()) == pytest.approx(11.0)


# ---- deadlines -------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 9), st.sampled_from(["drop", "keep"])), max_size=300), st.floats(0, 9))
def test_what_is_due_comes_once_in_order_and_what_was_dropped_never(
    deadlines: list[tuple[float, str]], now: float
) -> None:
    book = Deadlines()
    for at, (when, _) in enumerate(deadlines):
        book.push(when, f"a{at}")
    for at, (_, fate) in enumerate(deadlines):
        if fate == "drop":
            book.drop(f"a{at}")
    kept = sorted((when, f"a{at}") for at, (when, fate) in enumerate(deadlines) if fate == "keep")
    assert list(book.due(now)) == [name for when, name in kept if when <= now]
    assert list(book.due(now)) == []
    assert len(book) == len([one for one in kept if one[0] > now])


def test_deadlines_of_answered_actions_do_not_pile_up() -> None:
    book = Deadlines()
    for at in range(10_000):
        book.push(1e9 + at, f"a{at}")
        book.drop(f"a{at}")
    assert len(book._heap) <= COMPACT_ABOVE


def test_one_that_is_dropped_while_others_are_due_does_not_come() -> None:
    book = Deadlines()
    for name in ("first", "second", "third"):
        book.push(1.0, name)
    due = []
    for name in book.due(2.0):
        due.append(name)
        book.drop("second")
    assert due == ["first", "third"]
