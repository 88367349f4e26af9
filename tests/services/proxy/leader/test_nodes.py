"""Last hello of each node: enough to bring back one that was counted as lost."""

from __future__ import annotations

import pytest

from services.proxy.leader import nodes
from services.proxy.leader.nodes import NodeRegistry
from shared.messages.base import Message
from shared.messages.grants import grants_topic
from shared.messages.nodes import Bye, Heartbeat
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.formulation import AskInventory, Command
from tests.services.proxy.mesh import START, from_node, hello

OLD = START - 60.0


def beat(node: str = "n", incarnation: str = "1") -> Heartbeat:
    return Heartbeat(node=node, incarnation=incarnation, owned={}, used={})


class Meeting:
    """A registry of nodes and its dispatcher."""

    def __init__(self) -> None:
        self.registry = NodeRegistry()
        self.dispatcher = Dispatcher(node_lost_s=10.0)

    def hear(self, message: Message, *, at: float = START, now: float = START) -> list[Command]:
        return list(self.registry.handle(now, from_node(message, at=at), self.dispatcher))

    def known(self) -> dict[str, str]:
        return {name: node.incarnation for name, node in self.dispatcher.cluster.nodes.present.items()}

    def stream(self, node: str = "n") -> str | None:
        topic = self.registry.topic(node)
        return topic.name if topic is not None else None


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


def test_a_hello_is_answered_with_an_inventory_request(meeting: Meeting) -> None:
    assert meeting.hear(hello()) == [AskInventory("n")]
    assert meeting.known() == {"n": "1"}
    assert meeting.stream() == grants_topic("n", "1").name


def test_an_unknown_name_has_no_stream(meeting: Meeting) -> None:
    assert meeting.stream("unknown") is None


def test_an_old_hello_is_stored_and_does_not_count_as_a_heartbeat(meeting: Meeting) -> None:
    assert meeting.hear(hello(), at=OLD) == []
    assert meeting.known() == {}
    assert meeting.stream() is not None


def test_a_fresh_heartbeat_brings_a_node_of_an_old_hello_back(meeting: Meeting) -> None:
    meeting.hear(hello(cores=3), at=OLD)

    assert meeting.hear(beat()) == [AskInventory("n")]
    assert meeting.dispatcher.cluster.nodes.present["n"].capacity == {"cores": 3}


def test_an_old_heartbeat_brings_no_node_back(meeting: Meeting) -> None:
    meeting.hear(hello(), at=OLD)

    assert meeting.hear(beat(), at=OLD) == []
    assert meeting.known() == {}


@pytest.mark.parametrize("message", [beat("stranger"), beat("n", "another life")])
def test_a_heartbeat_without_its_hello_means_nothing(meeting: Meeting, message: Heartbeat) -> None:
    meeting.hear(hello(), at=OLD)

    assert meeting.hear(message) == []
    assert meeting.known() == {}


def test_a_heartbeat_of_a_known_node_asks_nothing(meeting: Meeting) -> None:
    meeting.hear(hello())

    assert meeting.hear(beat(), at=START + 5, now=START + 5) == []
    assert meeting.dispatcher.cluster.nodes.present["n"].seen_s == START + 5


def test_a_new_incarnation_takes_the_place_of_the_old_one(meeting: Meeting) -> None:
    meeting.hear(hello())

    assert AskInventory("n") in meeting.hear(hello(incarnation="2"))
    assert (meeting.known(), meeting.stream()) == ({"n": "2"}, grants_topic("n", "2").name)


def test_a_node_that_has_sent_a_bye_is_gone(meeting: Meeting) -> None:
    meeting.hear(hello())
    meeting.hear(Bye(node="n", incarnation="1"))

    assert meeting.known() == {}


def test_the_bye_of_a_former_incarnation_does_not_remove_the_new_one(meeting: Meeting) -> None:
    meeting.hear(hello())
    meeting.hear(hello(incarnation="2"))
    meeting.hear(Bye(node="n", incarnation="1"))

    assert meeting.known() == {"n": "2"}


def test_the_registry_is_bounded_and_drops_the_oldest(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MOST_NODES", 2)
    for name in ("n1", "n2", "n3"):
        meeting.hear(hello(name))

    assert [meeting.stream(name) is None for name in ("n1", "n2", "n3")] == [True, False, False]
