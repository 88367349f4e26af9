"""Who gets what next: shares, the order of pools, the head of each, what may pass it, and when a newcomer would start.

Law: among requests of a pool that fit, the earliest batch of the tenant in turn goes first. A head that does not fit
has its units blocked on the node where they should be together first; there, only what is predicted to end before
that moment, or needs none of the head's resources, may be started behind it. Pools go by the keys of their heads, so
a resource that several pools draw from is blocked for the oldest need. Short heads may be granted ahead (see `ahead`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shared.policy.floor import Floor
from shared.policy.formulation import Command, Grant, SetShare
from shared.policy.ledger import Node, place, spread
from shared.policy.life import Life
from shared.policy.pools import BACKFILL_DEPTH, Pool, ZeroQueue, reserve


@dataclass(slots=True)
class Blocked:
    """A head that waits for units, and the reservation that follows from it, made when somebody asks."""

    head: Life
    nodes: list[Node]
    """Of its pool."""
    node: Node | None = None
    """Where its units should be together first; None if no ready node will ever have them."""
    until_s: float | None = None

    def forbids(self, floor: Floor, node: Node, life: Life, now: float) -> bool:
        """Would this work, started there now, keep the head waiting?"""
        if self.until_s is None:
            self.until_s, self.node = _reservation(floor, self.nodes, self.head, now)
        if node is not self.node or self.head.work.units.keys().isdisjoint(life.work.units):
            return False
        return now + floor.durations.expect(life.duration_key, life.work.timeout_s) > self.until_s


def fill(floor: Floor, now: float) -> list[Command]:
    """Set shares anew where they may have changed, then grant what fits, pool by pool."""
    commands: list[Command] = []
    floor.promote(now)
    if floor.dirty:
        for name in sorted(floor.dirty):
            commands += _share(floor, floor.pools[name])
        floor.dirty.clear()
        floor.promote(now)
    waiting = [pool for pool in floor.pools.values() if pool.queue]
    if len(waiting) > 1:
        waiting.sort(key=lambda pool: pool.queue.head_key())
    blocked: list[Blocked] = []
    for pool in waiting:
        _fill_pool(floor, pool, blocked, now, commands)
    return commands


def park_stuck(floor: Floor, life: Life) -> None:
    """Set a newcomer aside if no present node could ever take it: deep in a queue nobody would notice."""
    work = life.work
    pool = floor.pool(work.pool)
    nodes = floor.nodes_of(pool)
    for node in nodes:
        if node.could_ever(work.kind, work.units):
            return
    if nodes:
        floor.park(pool, life)


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
    work = life.work
    return [node for node in floor.nodes_of(pool) if node.ready and node.could_ever(work.kind, work.units)]


def _granted(floor: Floor, pool: Pool, nodes: list[Node], now: float) -> tuple[int, int, float]:
    """Of the pool's resource on these nodes: units that exist, units used, expected unit-seconds left."""
    resource = pool.resource
    capacity = sum(node.capacity.get(resource, 0) for node in nodes)
    used = sum(node.used.get(resource, 0) for node in nodes)
    held = [floor.granted.get(node.name, {}).values() for node in nodes]
    left_s = sum(
        max(0.0, one.expected_end_s - now) * one.work.units.get(resource, 0) for lives in held for one in lives
    )
    return capacity, used, left_s


def _share(floor: Floor, pool: Pool, *, blocked: bool = False) -> list[Command]:
    """Tell nodes what to own. A pool that was never targeted is owned whole.

    `blocked`: the head of its queue does not fit what is owned.
    """
    if pool.target is None:
        return []
    resource = pool.resource
    head = pool.queue.head()
    life = floor.queued[head] if head is not None else None
    rule: ZeroQueue = "off"
    if not floor.planned:
        rule = "blocked" if blocked or (head is not None and head == pool.feasible) else "on"
    least = pool.demand.peak if rule == "on" else rule
    wish = (pool.target, pool.outside.peak, least, *((life.work.kind, life.work.units) if life is not None else ()))
    if wish == pool.settled:
        return []
    nodes = [node for node in floor.nodes_of(pool) if node.ready]
    able = [] if life is None else [node for node in nodes if node.could_ever(life.work.kind, life.work.units)]
    needed = life.pool_units if life is not None and able else 0
    wanted = pool.wanted(nodes, needed, rule)
    shares = spread(wanted, nodes, resource)
    if able and all(shares[node.name] < needed for node in able):  # no node would ever own enough for the head alone
        host = min(able, key=lambda node: (-node.limit(resource), node.name))  # most already: it does not change
        shares = spread(wanted, nodes, resource, {host.name: needed})
    pool.settled = wish if sum(shares.values()) == wanted else None
    commands: list[Command] = []
    for node in nodes:
        units = shares[node.name]
        if node.share.get(resource) != units:  # also where it is all there is: a former leader may have said otherwise
            node.share[resource] = units
            commands.append(SetShare(node.name, resource, units))
    return commands


def _fill_pool(floor: Floor, pool: Pool, blocked: list[Blocked], now: float, commands: list[Command]) -> None:
    nodes = floor.nodes_of(pool)
    while (head := pool.queue.head()) is not None:
        life = floor.queued[head]
        node = _place(floor, pool, nodes, life, blocked, now)
        if node is not None:
            commands.append(_grant(floor, pool, life, node, now, is_head=True))
        elif head != pool.feasible and nodes and not _could_ever(nodes, life):
            floor.park(pool, life)
        elif pool.target is not None and (shares := _share(floor, pool, blocked=True)):
            commands += shares
            floor.promote(now)
        elif (node := _line(floor, nodes, life, blocked, now)) is not None:
            commands.append(_grant(floor, pool, life, node, now, is_head=True, ahead=True))
        else:
            pool.feasible = head
            blocked.append(Blocked(life, nodes))
            _backfill(floor, pool, nodes, blocked, now, commands)
            return


def _place(floor: Floor, pool: Pool, nodes: list[Node], life: Life, blocked: list[Blocked], now: float) -> Node | None:
    work = life.work
    node = place(nodes, life.request.id, work.kind, work.units, pool.resource)
    if node is None or not any(one.forbids(floor, node, life, now) for one in blocked):
        return node
    nodes = [node for node in nodes if not any(one.forbids(floor, node, life, now) for one in blocked)]
    return place(nodes, life.request.id, work.kind, work.units, pool.resource)


def _line(floor: Floor, nodes: list[Node], life: Life, blocked: list[Blocked], now: float) -> Node | None:
    """The node in whose line a head that does not fit may stand, if any."""
    if not floor.ahead.short:
        return None
    node = floor.ahead.place(nodes, life, floor.durations.expect(life.duration_key, life.work.timeout_s))
    return None if node is None or any(one.forbids(floor, node, life, now) for one in blocked) else node


def _could_ever(nodes: list[Node], life: Life) -> bool:
    return any(node.could_ever(life.work.kind, life.work.units) for node in nodes)


def _reservation(floor: Floor, nodes: list[Node], head: Life, now: float) -> tuple[float, Node | None]:
    """The node that is predicted to have the head's units together first, and when; infinity if none ever will."""
    needed = head.work.units
    best: Node | None = None
    earliest_s = float("inf")
    for node in nodes:
        if node.ready and node.could_ever(head.work.kind, needed):
            held = floor.granted.get(node.name, {}).values()
            ends = [(life.expected_end_s, life.work.units) for life in held if life.booked]
            ends += [(now, stray.units) for stray in node.strays.values()]
            until_s = reserve(now, needed, {name: node.free(name) for name in needed}, ends)
            if until_s < earliest_s:
                best, earliest_s = node, until_s
    return earliest_s, best


def _backfill(
    floor: Floor, pool: Pool, nodes: list[Node], blocked: list[Blocked], now: float, commands: list[Command]
) -> None:
    """Pass a head that does not fit with what its reservation allows."""
    resource = pool.resource
    most = max([node.free(resource) for node in nodes if node.ready], default=0)
    if not most:
        return
    for life in [floor.queued[name] for name in _behind(pool)]:
        if life.pool_units > most:
            continue
        node = _place(floor, pool, nodes, life, blocked, now)
        if node is not None:
            commands.append(_grant(floor, pool, life, node, now, is_head=False))
            most = max(node.free(resource) for node in nodes if node.ready)
            if not most:
                return
        elif not _could_ever(nodes, life):
            floor.park(pool, life)


def _behind(pool: Pool) -> Iterator[str]:
    for depth, name in enumerate(pool.queue):
        if depth > BACKFILL_DEPTH:
            return
        if depth:
            yield name


def _grant(
    floor: Floor, pool: Pool, life: Life, node: Node, now: float, *, is_head: bool, ahead: bool = False
) -> Grant:
    request, work = life.request, life.work
    expected_s = floor.durations.expect(life.duration_key, work.timeout_s)
    pool.queue.charge(request.tenant, expected_s * max(1, life.pool_units), ends_turn=is_head)
    floor.unqueue(life)
    life.expected_s = expected_s
    life.move("granted")
    life.attempt += 1
    (floor.stand if ahead else floor.occupy)(life, node, now)
    budget = max(0.0, request.deadline_s - now)
    return Grant(request.id, node.name, life.attempt, life.stage, work.units, budget)
