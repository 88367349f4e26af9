"""Choice of nodes: for a trajectory's environment, an image, or the reservation of a head that does not fit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import EnvironmentNeed
from shared.policy.resources.chunk_waits import free_first
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import reserve
from shared.policy.resources.residency import ABSENT
from shared.policy.resources.resource import lasting, load


def place_environment(nodes: Iterable[Node], action: ActionState, resource: str, now: float) -> Node | None:
    """Return the node for a trajectory's new environment; None if none has the cores now and the memory for the whole
    trajectory (ARL-Tangram §5.2).

    Nodes with the image precede nodes that are pulling it. Among equals, the strategy of what the environment holds to
    its end decides (for memory, the smallest share used afterwards), then the most free cores, then the first.
    """
    need = action.request.need
    assert need is not None, f"{action.request.id} has no trajectory"
    best, key = None, (math.inf, math.inf, 0)
    for node in nodes:
        if need.kind in node.kinds and node.fits(action.request.id, action.work.kind, action.needs):
            worst = _worst(node, lasting(node.specs, need.units))
            mine = (node.images.rank(need.image, now), worst, -node.free(resource))
            if mine < key:
                best, key = node, mine
    return best


def place_pull(nodes: Iterable[Node], image: str, kind: str, units: Mapping[str, int], now: float) -> Node | None:
    """Return the node that must pull an image whose environments are expected; None if no pull is needed.

    It is the node where one of them is predicted to be placed: the order of `place_environment`, with the memory that
    other expected environments will hold counted as taken. So an image that fits on no node is not pulled. The node
    stores the prediction. O(nodes * expected images).
    """
    best, key = None, (math.inf, math.inf)
    for node in nodes:
        if not node.ready or kind not in node.kinds:
            continue
        held = {name: node.images.expected_units(name, now) + count for name, count in units.items()}
        if all(node.taken(name) + count <= node.capacity.get(name, 0) for name, count in held.items()):
            mine = (node.images.rank(image, now), _worst(node, held))
            if mine < key:
                best, key = node, mine
    if best is None:
        return None
    best.images.expect(image, units, now)
    return best if key[0] >= ABSENT else None


def reservation(cluster: ClusterState, nodes: list[Node], head: ActionState, now: float) -> tuple[float, Node | None]:
    """Return when and where the head's units are predicted to be free together first; infinity and None if on no node.

    The end of an environment, and the end of its creation, cannot be predicted. If the head waits for what environments
    hold, the result is the node with the largest share of memory free, and infinity.
    """
    structured = head.needs.keys() == {head.resource}  # then one chunk is all that it needs
    waiting = cluster.queues.pool(head.work.pool).services.keys() - {head.work.service} if structured else frozenset()
    need = head.request.need if head.begins else None
    best: Node | None = None
    key = (math.inf, 0.0 if need is None else math.inf)
    for node in nodes:
        if node.ready and head.could_have(node, head.units):
            chunks = node.resources.get(head.resource) if structured else None
            if isinstance(chunks, Chunks):
                until_s = chunk_free_at(chunks, head, waiting, cluster.swap_wait_s, now)
            else:
                until_s = units_free_at(cluster, node, head.needs, now)
            load = 0.0 if need is None else load_of(node, need)
            if (until_s, load) < key:
                best, key = node, (until_s, load)
    return key[0], best


def units_free_at(cluster: ClusterState, node: Node, needed: Mapping[str, int], now: float) -> float:
    """Return when the needed units are predicted to be free together on a node: absolute seconds, `now` at least;
    infinity if never. What the node was asked to stop is assumed to end now.
    """
    free = {name: node.free(name) for name in needed}
    if all(free[name] >= count for name, count in needed.items()):
        return now
    held = cluster.granted.get(node.name, {}).values()
    ends = [(action.expected_end_s, action.units) for action in held if action.allocated]
    ends += [(now, orphan.units) for orphan in node.orphans.values()]
    return reserve(now, needed, free, ends)


def chunk_free_at(chunks: Chunks, head: ActionState, waiting: Collection[str], shortest_s: float, now: float) -> float:
    """Return when a head has a place on a node's chunks: absolute seconds, `now` at least; infinity if never.

    `waiting`, `shortest_s`: services whose turns it does not end, and their shortest one.
    """
    use = head.use(now)
    if chunks.fits(head.granted_units, use):
        return now
    waited_s = now - head.queued_s
    free_s, _ = free_first(chunks, head.granted_units, use.service, waiting, shortest_s, now=now, waited_s=waited_s)
    return max(now, free_s)


def load_of(node: Node, need: EnvironmentNeed) -> float:
    """Largest share taken of what an environment holds to its end."""
    return max((load(node.taken(name), node.capacity[name]) for name in lasting(node.specs, need.units)), default=0.0)


def _worst(node: Node, units: Mapping[str, int]) -> float:
    """Largest of the negated scores of these resources: the environment goes where it is smallest."""
    return max((-node.score(name, count) for name, count in units.items()), default=0.0)
