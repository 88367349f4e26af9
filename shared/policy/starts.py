"""When a newcomer would start: for those who want to be refused rather than to start too late."""

from __future__ import annotations

from shared.policy.floor import Floor
from shared.policy.ledger import Node
from shared.policy.life import Life
from shared.policy.pools import Pool


def starts_by(floor: Floor, life: Life, now: float, by_s: float) -> bool:
    """Is a newcomer predicted to start by then? True while nothing is known, because no node has said what it holds.

    O(granted) where it would be in time behind all that waits, else as `predict_start`.
    """
    pool = floor.pool(life.work.pool)
    nodes = _able(floor, pool, life)
    capacity, _, ahead_s = _granted(floor, pool, nodes, now)
    if not capacity or (now <= by_s and ahead_s + pool.queued_s <= (by_s - now) * capacity):
        return True
    return predict_start(floor, life, now, by_s) <= by_s


def predict_start(floor: Floor, life: Life, now: float, by_s: float = float("inf")) -> float:
    """When a newcomer would start if it were queued now, absolute seconds; optimistic about later arrivals.

    Work that would go before it, by expected duration, over the units of its pool; minus infinity where no node has
    said what it holds. O(granted + queue ahead), bounded; counting stops once the start lies beyond `by_s`.
    """
    pool = floor.pool(life.work.pool)
    capacity, used, ahead_s = _granted(floor, pool, _able(floor, pool, life), now)
    if not capacity:
        return float("-inf")
    busy = used + life.pool_units
    enough_s = (by_s - now) * capacity
    for name in pool.queue.ahead(life.request.tenant, floor.batches.key(life.request, floor.durations)):
        other = floor.queued[name]
        ahead_s += other.expected_s * other.pool_units
        busy += other.pool_units
        if busy > capacity and ahead_s > enough_s:
            break
    return now + ahead_s / capacity if busy > capacity else now


def _able(floor: Floor, pool: Pool, life: Life) -> list[Node]:
    return [node for node in floor.nodes_of(pool) if node.ready and life.could_run_on(node)]


def _granted(floor: Floor, pool: Pool, nodes: list[Node], now: float) -> tuple[int, int, float]:
    """Of the pool's resource on these nodes: units that exist, units used, expected unit-seconds left."""
    resource = pool.resource
    capacity = sum(node.capacity.get(resource, 0) for node in nodes)
    used = sum(node.used.get(resource, 0) for node in nodes)
    held = [floor.granted.get(node.name, {}).values() for node in nodes]
    left_s = sum(max(0.0, one.expected_end_s - now) * one.units.get(resource, 0) for lives in held for one in lives)
    return capacity, used, left_s
