"""Present nodes by name and class, and inventory requests of lost ones."""

from __future__ import annotations

from shared.policy.dispatch.nodes import MOST_LOST, Nodes
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool
from tests.shared.policy.strategies import CORES, node


def nodes_with(*added: Node) -> Nodes:
    nodes = Nodes()
    for one in added:
        nodes.add(one)
    return nodes


def test_a_pool_has_the_nodes_of_its_class_and_a_bound_lane_one_of_them() -> None:
    nodes, pool = nodes_with(node("b"), node("a"), Node("g", "1", "gpu", {"chunks": 8}, frozenset())), Pool(CORES)
    assert [one.name for one in nodes.of(pool)] == ["a", "b"]
    assert [one.name for one in nodes.of(pool, Lane("=b", "b"))] == ["b"]
    assert nodes.of(pool, Lane("=g", "g")) == [], "of another class"
    assert nodes.of(pool, Lane("=x", "x")) == [], "not present"
    nodes.remove("a")
    assert [one.name for one in nodes.of(pool)] == ["b"]


def test_only_the_present_incarnation_counts() -> None:
    nodes = nodes_with(node("n", incarnation="1"), node("n", incarnation="2"))
    assert nodes.incarnation("n", "1") is None
    assert nodes.incarnation("n", "2") is nodes.present["n"]


def test_an_incarnation_that_comes_back_inherits_its_unanswered_inventory_requests() -> None:
    lost = node("n")
    nodes = nodes_with(lost)
    lost.ask(7, 0.0)
    nodes.remove("n")
    back, other = node("n"), node("n", incarnation="2")
    nodes.add(back)
    back.ask(9, 1.0)
    assert (back.answered(), back.answered()) == (None, 9), "the first answer does not cover the time between"
    nodes.remove("n")
    nodes.add(other)
    assert not other.asked


def test_remembered_lost_nodes_are_bounded() -> None:
    nodes = Nodes()
    for number in range(MOST_LOST + 10):
        one = node(f"n{number}")
        one.ask(1, 0.0)
        nodes.add(one)
        nodes.remove(one.name)
    assert len(nodes._lost) == MOST_LOST
