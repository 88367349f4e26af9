"""What the leader remembers of nodes beside the ledger: their last hello, so that one taken for dead can come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.bus.tail import Entry
from shared.messages.nodes import Bye, Heartbeat, Hello
from shared.policy.dispatch import Dispatcher
from shared.policy.formulation import Command
from shared.policy.ledger import Node

MOST_NODES = 4096


class NodeBook:
    """Hellos by node name, the newest incarnation of each."""

    def __init__(self) -> None:
        self._hellos: dict[str, Hello] = {}

    def incarnation(self, node: str) -> str | None:
        """The incarnation a message to this node goes to."""
        hello = self._hellos.get(node)
        return None if hello is None else hello.incarnation

    def heard(self, now: float, entry: Entry[Any], dispatcher: Dispatcher) -> Sequence[Command]:
        """Take one message of a node. Old ones (read at takeover) are remembered, but do not count as life."""
        fresh = now - entry.at < dispatcher.node_lost_s
        match entry.message:
            case Hello() as hello:
                self._hellos[hello.node] = hello
                while len(self._hellos) > MOST_NODES:
                    del self._hellos[next(iter(self._hellos))]
                return dispatcher.node_said_hello(now, _ledger_node(hello)) if fresh else ()
            case Heartbeat() as beat if fresh and not dispatcher.node_seen(now, beat.node, beat.incarnation):
                known = self._hellos.get(beat.node)
                if known is not None and known.incarnation == beat.incarnation:
                    return dispatcher.node_said_hello(now, _ledger_node(known))
            case Bye() as bye if self.incarnation(bye.node) == bye.incarnation:
                return dispatcher.node_lost(now, bye.node, "it has stopped")
        return ()


def _ledger_node(hello: Hello) -> Node:
    return Node(hello.node, hello.incarnation, hello.node_class, hello.capacity, frozenset(hello.kinds))
