"""Which node shall pull which image before it is asked for (RollArt: making an environment must not wait for it)."""

from __future__ import annotations

from services.proxy.nodes import NodeBook
from services.proxy.requests import runtime_kind
from shared.messages.trajectories import EnvironmentsExpected
from shared.units import Seconds

FRESH_S: Seconds = 60.0
"""Older hints, read at a take-over, have been passed on."""
AGAIN_S: Seconds = 300.0
"""A node is told so much later again: it may have removed the image."""
MOST_TOLD = 16_384


class Images:
    """What nodes have been told to pull. A node and a runtime do each of them once, however often they are told."""

    def __init__(self, nodes: NodeBook) -> None:
        self._nodes = nodes
        self._told: dict[tuple[str, str, str], Seconds] = {}

    def wanted(self, now: Seconds, said: Seconds, expected: EnvironmentsExpected) -> list[tuple[str, str]]:
        """(Node, image) for every node that has not been told lately. `said`: when it was expected."""
        if now - said > FRESH_S:
            return []
        news: list[tuple[str, str]] = []
        for node, incarnation in self._nodes.offering(runtime_kind("docker"), expected.node_class):
            for image in expected.images:
                key = (node, incarnation, image)
                if now - self._told.get(key, -AGAIN_S) >= AGAIN_S:
                    self._told.pop(key, None)  # popped and set again: the dict's order is by last use
                    self._told[key] = now
                    news.append((node, image))
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        return news
