"""Which node: for a trajectory's whole stay, and where what does not fit will fit first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from shared.policy.floor import Floor
from shared.policy.ledger import Node
from shared.policy.life import Life
from shared.policy.pools import reserve


def place_home(nodes: Iterable[Node], life: Life, resource: str) -> Node | None:
    """Of the nodes that have the cores now and the memory for the whole trajectory, the one with the smallest share of
    its memory taken afterwards; where equal the one with the most free cores, then the first (ARL-Tangram §5.2).
    """
    stay = life.request.stay
    assert stay is not None, f"{life.request.id} has no trajectory"
    best, key = None, (math.inf, 0)
    for node in nodes:
        if stay.kind in node.kinds and node.fits(life.request.id, life.work.kind, life.needs):
            taken = [(node.used.get(name, 0) + count) / node.capacity[name] for name, count in stay.units.items()]
            mine = (max(taken, default=0.0), -node.free(resource))
            if mine < key:
                best, key = node, mine
    return best


def reservation(floor: Floor, nodes: list[Node], head: Life, now: float) -> tuple[float, Node | None]:
    """The node that is predicted to have the head's units together first, and when; infinity and none if none will.

    Nobody knows when environments end. Where the head waits for memory that they hold, it is the node with the largest
    share of it free, and the moment infinity.
    """
    needed = head.needs
    stay = head.request.stay if head.begins else None
    best: Node | None = None
    key = (math.inf, 0.0 if stay is None else math.inf)
    for node in nodes:
        if node.ready and head.could_run_on(node):
            held = floor.granted.get(node.name, {}).values()
            ends = [(life.expected_end_s, life.units) for life in held if life.booked]
            ends += [(now, stray.units) for stray in node.strays.values()]
            until_s = reserve(now, needed, {name: node.free(name) for name in needed}, ends)
            lacks = 0.0 if stay is None else _taken(node, stay.units)
            if (until_s, lacks) < key:
                best, key = node, (until_s, lacks)
    return key[0], best


def _taken(node: Node, units: Mapping[str, int]) -> float:
    """The largest share that is taken of any of these resources."""
    return max((node.used.get(name, 0) / node.capacity[name] for name in units), default=0.0)
