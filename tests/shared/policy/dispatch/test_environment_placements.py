"""Units of environments on their nodes, and reconciliation with inventories."""

from __future__ import annotations

import pytest

from services.cpu_manager.kinds import STARTS
from shared.policy.dispatch.environment_placements import EnvironmentPlacements
from shared.policy.dispatch.nodes import Nodes
from shared.policy.model.formulation import EnvironmentNeed
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import node

MEMORY = {"memory_mb": 10}
NEED = EnvironmentNeed("t", "runtime.docker", {**MEMORY, STARTS: 1})


@pytest.fixture
def host() -> Node:
    return node("n", {"memory_mb": 100, STARTS: 2})


@pytest.fixture
def environments(host: Node) -> EnvironmentPlacements:
    nodes = Nodes()
    nodes.add(host)
    return EnvironmentPlacements(nodes)


def test_an_environment_holds_its_units_until_its_end_and_the_start_until_it_exists(
    environments: EnvironmentPlacements, host: Node
) -> None:
    assert environments.begins(NEED)
    environments.place(NEED, host, 1, 0.0)
    assert not environments.begins(NEED)
    assert host.used == {"memory_mb": 10, STARTS: 1}
    assert environments.created("t", "n")
    assert not environments.created("t", "n"), "reported again"
    assert host.used == {"memory_mb": 10, STARTS: 0}
    environments.remove("t")
    assert host.used == {"memory_mb": 0, STARTS: 0}
    assert environments.remove("t") is None
    environments.check()


def test_an_environment_that_is_placed_elsewhere_is_an_orphan_until_its_end(
    environments: EnvironmentPlacements, host: Node
) -> None:
    for _ in range(2):  # units of an orphan are taken once
        assert environments.reconcile(host, {"unknown": MEMORY}, 0) == (["unknown"], [])
        assert host.used == {**MEMORY, STARTS: 0}
    assert environments.remove_orphan("n", "unknown")
    assert not environments.remove_orphan("n", "unknown")
    assert host.used == {"memory_mb": 0, STARTS: 0}


def test_an_orphan_that_an_inventory_no_longer_lists_has_ended(environments: EnvironmentPlacements, host: Node) -> None:
    environments.reconcile(host, {"unknown": MEMORY}, 0)
    assert environments.reconcile(host, {}, 0) == ([], [])
    assert host.used == {"memory_mb": 0, STARTS: 0}
    assert not environments.orphans


@pytest.mark.parametrize(("asked", "lost"), [(0, []), (1, ["t"])])
def test_an_inventory_proves_a_loss_only_if_it_was_requested_after_the_grant(
    environments: EnvironmentPlacements, host: Node, asked: int, lost: list[str]
) -> None:
    environments.place(NEED, host, 1, 0.0)
    assert environments.reconcile(host, {}, asked) == ([], lost)


def test_a_node_that_is_back_holds_what_it_reports(environments: EnvironmentPlacements, host: Node) -> None:
    environments.place(NEED, host, 1, 0.0)
    environments.nodes.remove("n")
    environments.node_away("n")
    assert environments.held("n", "memory_mb") == 0
    back = node("n", {"memory_mb": 100}, incarnation="2")
    environments.nodes.add(back)
    environments.node_back("n")
    environments.reconcile(back, {"t": {"memory_mb": 12}}, 0)
    assert back.used == {"memory_mb": 12}
    assert environments.held("n", "memory_mb") == 12


def test_environments_of_an_absent_node_are_lost_after_a_grace_period(
    environments: EnvironmentPlacements, host: Node
) -> None:
    environments.place(NEED, host, 1, 0.0)
    environments.nodes.remove("n")
    assert list(environments.away(5.0, 60.0)) == [], "absent since now"
    assert list(environments.away(65.0, 60.0)) == []
    assert [name for name, _ in environments.away(65.1, 60.0)] == ["t"]


def test_the_grace_period_of_a_second_absence_counts_from_its_own_beginning(
    environments: EnvironmentPlacements, host: Node
) -> None:
    environments.place(NEED, host, 1, 0.0)
    environments.nodes.remove("n")
    assert list(environments.away(5.0, 60.0)) == []
    environments.nodes.add(host)
    environments.node_back("n")
    environments.nodes.remove("n")
    assert list(environments.away(1000.0, 60.0)) == [], "absent again since now"
    assert [name for name, _ in environments.away(1060.1, 60.0)] == ["t"]
