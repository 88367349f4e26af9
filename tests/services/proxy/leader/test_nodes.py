"""Last hello of each node: enough to bring back one that was counted as lost."""

from __future__ import annotations

import msgspec
import pytest

from services.cpu_manager.kinds import RESOURCES
from services.proxy.leader import nodes
from services.proxy.leader.nodes import NodeRegistry
from shared.messages.base import Message
from shared.messages.grants import grants_topic
from shared.messages.nodes import Bye, Heartbeat
from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.views import NodeSummary
from shared.policy.model.formulation import AskInventory, Command
from tests.services.proxy.mesh import START, from_node, hello

OLD = START - 60.0


def beat(node: str = "n", incarnation: str = "1") -> Heartbeat:
    return Heartbeat(node=node, incarnation=incarnation, owned={}, used={})


class NodeRegistryDriver:
    """A registry of nodes and its dispatcher."""

    def __init__(self) -> None:
        self.registry = NodeRegistry()
        self.dispatcher = Dispatcher(DispatchConfig(node_lost_s=10.0), RESOURCES)

    def receive(self, message: Message, *, at: float = START, now: float = START) -> list[Command]:
        return self.dispatcher.handle(now, *self.registry.stimuli(now, from_node(message, at=at), self.dispatcher))

    def known(self) -> dict[str, str]:
        return {name: self.node(name).incarnation for name in self.dispatcher.node_names()}

    def node(self, name: str) -> NodeSummary:
        node = self.dispatcher.node(name)
        assert node is not None, f"{name} is unknown"
        return node

    def stream(self, node: str = "n") -> str | None:
        topic = self.registry.topic(node)
        return topic.name if topic is not None else None


@pytest.fixture
def driver() -> NodeRegistryDriver:
    return NodeRegistryDriver()


def test_a_hello_is_answered_with_an_inventory_request(driver: NodeRegistryDriver) -> None:
    assert driver.receive(hello()) == [AskInventory("n")]
    assert driver.known() == {"n": "1"}
    assert driver.stream() == grants_topic("n", "1").name


def test_an_unknown_name_has_no_stream(driver: NodeRegistryDriver) -> None:
    assert driver.stream("unknown") is None


def test_an_old_hello_is_stored_and_does_not_count_as_a_heartbeat(driver: NodeRegistryDriver) -> None:
    assert driver.receive(hello(), at=OLD) == []
    assert driver.known() == {}
    assert driver.stream() is not None


def test_a_fresh_heartbeat_brings_a_node_of_an_old_hello_back(driver: NodeRegistryDriver) -> None:
    driver.receive(hello(cores=3), at=OLD)

    assert driver.receive(beat()) == [AskInventory("n")]
    assert driver.node("n").capacity == {"cores": 3}


def test_an_old_heartbeat_brings_no_node_back(driver: NodeRegistryDriver) -> None:
    driver.receive(hello(), at=OLD)

    assert driver.receive(beat(), at=OLD) == []
    assert driver.known() == {}


@pytest.mark.parametrize("message", [beat("stranger"), beat("n", "another life")])
def test_a_heartbeat_without_its_hello_is_ignored(driver: NodeRegistryDriver, message: Heartbeat) -> None:
    driver.receive(hello(), at=OLD)

    assert driver.receive(message) == []
    assert driver.known() == {}


def test_a_heartbeat_of_a_known_node_asks_nothing(driver: NodeRegistryDriver) -> None:
    driver.receive(hello())

    assert driver.receive(beat(), at=START + 5, now=START + 5) == []
    assert driver.node("n").seen_s == START + 5


def test_a_new_incarnation_takes_the_place_of_the_old_one(driver: NodeRegistryDriver) -> None:
    driver.receive(hello())

    assert AskInventory("n") in driver.receive(hello(incarnation="2"))
    assert (driver.known(), driver.stream()) == ({"n": "2"}, grants_topic("n", "2").name)


def test_a_node_that_has_sent_a_bye_is_gone(driver: NodeRegistryDriver) -> None:
    driver.receive(hello())
    driver.receive(Bye(node="n", incarnation="1"))

    assert driver.known() == {}


def test_the_bye_of_a_former_incarnation_does_not_remove_the_new_one(driver: NodeRegistryDriver) -> None:
    driver.receive(hello())
    driver.receive(hello(incarnation="2"))
    driver.receive(Bye(node="n", incarnation="1"))

    assert driver.known() == {"n": "2"}


def test_a_hello_of_an_earlier_start_does_not_replace_a_later_one(driver: NodeRegistryDriver) -> None:
    driver.receive(msgspec.structs.replace(hello(incarnation="2"), generation=2))
    driver.receive(msgspec.structs.replace(hello(incarnation="1"), generation=1))

    assert (driver.known(), driver.stream()) == ({"n": "2"}, grants_topic("n", "2").name)


def test_a_forgotten_node_comes_back_with_its_next_hello(driver: NodeRegistryDriver) -> None:
    driver.receive(hello(), at=OLD)
    driver.registry.forget("n")
    assert (driver.stream(), driver.registry.counts({})) == (None, {"ready": 0, "silent": 0, "gone": 0})

    assert driver.receive(hello()) == [AskInventory("n")]


def absent(driver: NodeRegistryDriver, *names: str) -> None:
    """Known nodes that the dispatcher does not use."""
    for name in names:
        driver.receive(hello(name), at=OLD)


def streams(driver: NodeRegistryDriver, *names: str) -> list[str]:
    return [name for name in names if driver.stream(name) is not None]


def test_the_registry_is_bounded_and_drops_the_oldest(
    driver: NodeRegistryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MOST_NODES", 2)
    absent(driver, "n1", "n2", "n3")

    assert streams(driver, "n1", "n2", "n3") == ["n2", "n3"]


def test_the_registry_drops_the_node_whose_last_hello_is_oldest(
    driver: NodeRegistryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes with new names come and go; a node that stays must not lose its stream to them."""
    monkeypatch.setattr(nodes, "MOST_NODES", 2)
    absent(driver, "stays", "n1", "stays", "n2")

    assert streams(driver, "stays", "n1", "n2") == ["stays", "n2"]


def test_a_present_node_keeps_its_stream(driver: NodeRegistryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, messages to the node would be dropped."""
    monkeypatch.setattr(nodes, "MOST_NODES", 2)
    names = [f"n{number}" for number in range(20)]
    for name in names:
        driver.receive(hello(name))
    assert streams(driver, *names) == names

    absent(driver, "a1", "a2")
    assert streams(driver, *names) == names
    for _ in range(len(names)):
        driver.receive(hello("one more"))
    assert streams(driver, "a1", "a2") == [], "absent nodes leave"
