"""Shares in whole chunks: units of which work needs several together on one node, such as GPUs of one engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from shared.policy.resources.ledger import Node, spread

_NONE: Mapping[str, int] = MappingProxyType({})


def spread_chunks(
    wanted: int, nodes: Iterable[Node], resource: str, at_least: Mapping[str, int] = _NONE, chunk: int = 1
) -> dict[str, int]:
    """Return the units that each node must own so that they add up to `wanted` (or the capacity), as `spread`.

    Nodes own multiples of `chunk`: each chunk goes to the node with the fewest units that has room for a whole one, and
    then to nodes with room for a part. The sum exceeds `wanted` by less than a chunk, or because of running work and of
    `at_least`, which are rounded up. O((nodes + wanted / chunk) log nodes).
    """
    nodes = list(nodes)
    if chunk <= 1:
        return spread(wanted, nodes, resource, at_least)
    shares, capacity = dict[str, int](), {node.name: node.capacity.get(resource, 0) for node in nodes}
    for node in sorted(nodes, key=lambda node: node.name):
        least = max(node.taken(resource), at_least.get(node.name, 0))
        shares[node.name] = min(capacity[node.name], math.ceil(least / chunk) * chunk)
    room = [(capacity[name] - share < chunk, share, name) for name, share in shares.items() if share < capacity[name]]
    heapify(room)
    left = wanted - sum(shares.values())
    while left > 0 and room:
        _, share, name = heappop(room)
        shares[name] = min(capacity[name], share + chunk)
        left -= shares[name] - share
        if shares[name] < capacity[name]:
            heappush(room, (capacity[name] - shares[name] < chunk, shares[name], name))
    return shares
