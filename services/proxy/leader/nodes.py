"""Last hello of each node, kept beside the ledger so that a node counted as lost can come back."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice
from typing import Any, Final

from shared.bus.nodes import MOST_NODES
from shared.bus.tail import Entry
from shared.kinds.registry import all_kinds
from shared.kinds.spec import runtime_kind
from shared.messages.base import Topic
from shared.messages.grants import Grant, grants_topic
from shared.messages.nodes import Bye, Heartbeat, Hello
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import NodeJoined, NodeLost, NodeSeen, Stimulus
from shared.policy.resources.resource import UNLIMITED

DROP_CANDIDATES: Final = 8
"""Oldest hellos that are examined for each new one beyond `MOST_NODES`, so that a hello costs the same however many
nodes are present."""


class NodeRegistry:
    """Hellos by node name, the newest incarnation of each: `MOST_NODES`, or as many as there are present nodes."""

    def __init__(self) -> None:
        self._hellos: dict[str, Hello] = {}
        self._topics: dict[str, Topic[Grant]] = {}
        self._stopped: set[str] = set()
        """Nodes that have sent a Bye and not come back."""

    def topic(self, node: str) -> Topic[Grant] | None:
        """Topic for messages to this node; None if no node of that name has ever sent a hello."""
        return self._topics.get(node)

    def counts(self, present: Container[str]) -> dict[str, int]:
        """State -> number of nodes. `present`: names of the nodes that the dispatcher uses."""
        states = dict.fromkeys(("ready", "silent", "gone"), 0)
        for name in self._hellos:
            states["ready" if name in present else "gone" if name in self._stopped else "silent"] += 1
        return states

    def stimuli(self, now: float, entry: Entry[Any], dispatcher: Dispatcher) -> Iterator[Stimulus]:
        """Store one message of a node, and yield the stimulus that follows, if any.

        Old messages (read at takeover) are stored, but do not count as heartbeats.
        """
        fresh = now - entry.at < dispatcher.config.node_lost_s
        match entry.message:
            case Hello() as hello if not self._is_superseded(hello):
                self._hellos.pop(hello.node, None)  # the first one is then of the node that is silent for longest
                if len(self._hellos) >= MOST_NODES:
                    self._drop_absent(dispatcher)
                self._hellos[hello.node] = hello
                self._stopped.discard(hello.node)
                self._topics[hello.node] = grants_topic(hello.node, hello.incarnation)
                if fresh:
                    yield _joined(hello)
            case Heartbeat() as beat if fresh and dispatcher.has_node(beat.node, beat.incarnation):
                yield NodeSeen(beat.node, beat.incarnation)
            case Heartbeat() as beat if fresh:
                known = self._hellos.get(beat.node)
                if known is not None and known.incarnation == beat.incarnation:
                    yield _joined(known)
            case Bye() as bye:
                known = self._hellos.get(bye.node)
                if known is not None and known.incarnation == bye.incarnation:
                    self._stopped.add(bye.node)
                    yield NodeLost(bye.node, "it has stopped")

    def _drop_absent(self, dispatcher: Dispatcher) -> None:
        """Remove the absent node whose last hello is oldest, among the `DROP_CANDIDATES` oldest (second chance).
        Messages to present nodes need their streams.
        """
        for node in list(islice(self._hellos, DROP_CANDIDATES)):
            if dispatcher.node(node) is None:
                self.forget(node)
                return
            self._hellos[node] = self._hellos.pop(node)

    def forget(self, node: str) -> None:
        """Remove an absent node that has been silent for long."""
        self._hellos.pop(node, None)
        self._topics.pop(node, None)
        self._stopped.discard(node)

    def _is_superseded(self, hello: Hello) -> bool:
        """Return whether a later incarnation of its node is known. A manager that was frozen repeats its hello."""
        known = self._hellos.get(hello.node)
        return known is not None and known.generation > hello.generation


def _joined(hello: Hello) -> NodeJoined:
    resources = all_kinds().resources
    limitless = {name: UNLIMITED for name, spec in resources.items() if spec.unlimited and hello.runtimes}
    capacity = {**limitless, **hello.capacity}
    return NodeJoined(
        hello.node, hello.incarnation, hello.node_class, capacity, _kinds(hello), frozenset(hello.prefetches)
    )


def _kinds(hello: Hello) -> frozenset[str]:
    """Action kinds that it executes, and runtimes with which it creates environments."""
    return frozenset(hello.kinds).union(runtime_kind(runtime) for runtime in hello.runtimes)
