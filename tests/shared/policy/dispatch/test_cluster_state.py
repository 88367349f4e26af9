"""Cluster state: actions between queues and nodes, and stuck actions."""

from __future__ import annotations

import pytest

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.scheduling_round import schedule
from shared.policy.model.formulation import Grant
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import CORES, node, request, work


def cluster_with(*nodes: Node) -> ClusterState:
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


# ---- queues and nodes ------------------------------------------------------------------------------------------------


def test_nodes_belong_to_the_pools_of_their_class_by_name() -> None:
    cluster = cluster_with(node("b"), node("a"), Node("g", "1", "gpu", {"chunks": 8}, frozenset({"run"})))
    assert [one.name for one in cluster.nodes.of(cluster.queues.pool(CORES))] == ["a", "b"]
    assert [one.name for one in cluster.nodes.of(cluster.queues.pool("chunks@gpu"))] == ["g"]
    cluster.remove_node("a")
    assert [one.name for one in cluster.nodes.of(cluster.queues.pool(CORES))] == ["b"]


def test_an_action_goes_from_queue_to_node_and_away_and_leaves_nothing() -> None:
    cluster = cluster_with(node("n"))
    action = queue(cluster, "r", 2)
    cluster.check()
    assert [type(one) for one in schedule(cluster, 1.0)] == [Grant]
    cluster.check()
    assert cluster.nodes.present["n"].used == {"cores": 2}
    cluster.release(action)
    assert (cluster.queues.queued, cluster.granted, cluster.nodes.present["n"].used) == ({}, {"n": {}}, {"cores": 0})
    assert (cluster.queues.pool(CORES).outside.units, cluster.queues.pool(CORES).queued_s) == (0, 0.0)


def test_an_orphan_keeps_its_units_taken_until_its_node_is_removed() -> None:
    cluster = cluster_with(node("n"))
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
    cluster = cluster_with(node("n"))
    action = ActionState(request("r", work(), work(units={"cores": 3})), attempt=2)
    cluster.queues.enqueue(action)
    assert cluster.reconcile(5.0, cluster.nodes.present["n"], action, "r", holding) is taken
    assert (action.state, action.allocated) == (("granted", True) if taken else ("queued", False))
    assert cluster.nodes.present["n"].used == {"cores": 3 if holding.stage == 1 else 1}, (
        "either way its units are taken"
    )
    assert ("r" in cluster.nodes.present["n"].orphans) is not taken


# ---- parking ---------------------------------------------------------------------------------------------------------


def test_work_that_no_node_can_take_is_stuck_until_nodes_change() -> None:
    cluster = cluster_with(node("n", {"cores": 4}))
    wide = queue(cluster, "wide", 5, batch="b")
    queue(cluster, "narrow", 1, at=1)
    commands = schedule(cluster, 1.0)
    assert [one.action for one in commands if isinstance(one, Grant)] == ["narrow"]
    assert cluster.queues.pool(CORES).stuck == {"wide"}
    cluster.check()
    cluster.queues.rekey("b", 3.0)
    wider = node("w", {"cores": 5})
    wider.ready = True
    cluster.add_node(wider)
    cluster.queues.nodes_changed()
    assert cluster.queues.pool(CORES).stuck == set()
    assert [one.action for one in schedule(cluster, 2.0) if isinstance(one, Grant)] == ["wide"]
    assert wide.node == "w"


def test_stuck_work_can_be_removed() -> None:
    cluster = cluster_with(node("n", {"cores": 4}))
    wide = queue(cluster, "wide", 5)
    schedule(cluster, 1.0)
    cluster.queues.remove(wide)
    cluster.check()
    assert cluster.queues.queued == {}


def test_without_any_node_nothing_is_stuck() -> None:
    cluster = ClusterState()
    queue(cluster, "r")
    assert schedule(cluster, 1.0) == []
    assert cluster.queues.pool(CORES).stuck == set()
