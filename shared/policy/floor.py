"""The floor where work meets units: pools with their queues, nodes with their units, and who gets what next.

Law: a request is in exactly one queue (queued) or on exactly one node (granted, running, cancelling), or answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.policy.batches import BatchBook
from shared.policy.estimates import Durations
from shared.policy.formulation import Command, Grant, SetShare
from shared.policy.ledger import Node, place, spread
from shared.policy.life import Life
from shared.policy.pools import BACKFILL_DEPTH, Pool, reserve


@dataclass(slots=True)
class Floor:
    """Queues and nodes. Commands come out of `fill`."""

    batches: BatchBook = field(default_factory=BatchBook)
    durations: Durations = field(default_factory=Durations)
    nodes: dict[str, Node] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    granted: dict[str, dict[str, Life]] = field(default_factory=dict)
    """Node -> action -> life: what is granted there."""
    queued: dict[str, Life] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    """Pools whose shares must be computed anew."""
    _serial: int = 0

    @property
    def newest_serial(self) -> int:
        """Of the newest grant."""
        return self._serial

    def pool(self, name: str) -> Pool:
        """The pool of that name, made at first sight."""
        if name not in self.pools:
            self.pools[name] = Pool(name)
        return self.pools[name]

    def nodes_of(self, pool: Pool) -> list[Node]:
        """Nodes that belong to a pool."""
        return [node for node in self.nodes.values() if node.node_class == pool.node_class]

    def enqueue(self, life: Life) -> None:
        """Queue a life's current stage."""
        request = life.request
        pool = self.pool(life.work.pool)
        pool.queue.push(request.tenant, self.batches.key(request, self.durations), request.id)
        self.batches.waits(request)
        self.queued[request.id] = life
        if not request.batch:
            pool.note_outside(life.pool_units)
        self.dirty.add(pool.name)

    def dequeue(self, life: Life) -> None:
        """Take a queued life out of its queue for good (answered, or set aside)."""
        self._unqueue(life)
        self._left(life)

    def _unqueue(self, life: Life) -> None:
        request = life.request
        self.pool(life.work.pool).queue.remove(request.tenant, request.id)
        self.batches.leaves(request)
        del self.queued[request.id]

    def _left(self, life: Life) -> None:
        pool = self.pool(life.work.pool)
        if not life.request.batch:
            pool.note_outside(-life.pool_units)
        self.dirty.add(pool.name)

    def rekey(self, batch: str, at_s: float) -> None:
        """A batch's expected completion has a new estimate: its queued requests move."""
        for request in self.batches.expected(batch, at_s):
            pool = self.pool(self.queued[request.id].work.pool)
            pool.queue.update(request.tenant, self.batches.key(request, self.durations), request.id)

    def occupy(self, life: Life, node: Node, now: float) -> None:
        """Book a life on a node: units taken."""
        work = life.work
        node.take(work.units)
        self._serial += 1
        life.node, life.booked, life.serial, life.granted_s = node.name, True, self._serial, now
        life.expected_end_s = now + self.durations.expect(life.duration_key, work.timeout_s)
        self.granted.setdefault(node.name, {})[life.request.id] = life

    def adopt(self, life: Life, node: Node, now: float) -> None:
        """A node holds what we had queued (granted under a former leader): from the queue onto the node."""
        self._unqueue(life)
        life.move("granted")
        self.occupy(life, node, now)

    def set_aside(self, life: Life, node: str, now: float) -> None:
        """The store says a former leader granted it there and it must not run twice: only that node can tell."""
        self._unqueue(life)
        life.move("granted")
        life.node, life.granted_s, life.expected_end_s = node, now, now
        self.granted.setdefault(node, {})[life.request.id] = life

    def release(self, life: Life) -> None:
        """The node is done with a life: units free."""
        held = self.granted[life.node]
        del held[life.request.id]
        if life.booked and (node := self.nodes.get(life.node)) is not None:
            node.give_back(life.work.units)
        life.node, life.booked = "", False
        self._left(life)

    def drop_node(self, name: str) -> list[Life]:
        """Forget a node. Returns the lives it held, ordered, each released."""
        self.nodes.pop(name, None)
        lives = sorted(self.granted.get(name, {}).values(), key=lambda life: life.serial)
        for life in lives:
            self.release(life)
        self.granted.pop(name, None)
        self.nodes_changed()
        return lives

    def nodes_changed(self) -> None:
        """Shares must be spread anew over the nodes there are."""
        for pool in self.pools.values():
            pool.settled = None
            self.dirty.add(pool.name)

    def predict_start(self, life: Life, now: float) -> float:
        """When a newcomer would start if it were queued now, absolute seconds; optimistic about later arrivals.

        Work that would go before it, by expected duration, over the units of its pool. O(queue ahead), bounded.
        """
        pool = self.pool(life.work.pool)
        nodes = [node for node in self.nodes_of(pool) if node.could_ever(life.work.kind, life.work.units)]
        capacity = sum(node.capacity.get(pool.resource, 0) for node in nodes)
        if not capacity:
            return now
        key = self.batches.key(life.request, self.durations)
        ahead_s = sum(
            max(0.0, other.expected_end_s - now) * other.pool_units
            for node in nodes
            for other in self.granted.get(node.name, {}).values()
            if other.work.pool == pool.name
        )
        busy = sum(node.used.get(pool.resource, 0) for node in nodes)
        for name in pool.queue.ahead(life.request.tenant, key):
            other = self.queued[name]
            ahead_s += self.durations.expect(other.duration_key, other.work.timeout_s) * other.pool_units
            busy += other.pool_units
        return now + (ahead_s / capacity if busy + life.pool_units > capacity else 0.0)

    def fill(self, now: float) -> list[Command]:
        """Set shares anew where they may have changed, then grant what fits, pool by pool."""
        commands: list[Command] = []
        for name in sorted(self.dirty):
            commands += self._share(self.pools[name])
        self.dirty.clear()
        for pool in self.pools.values():
            if pool.queue:
                commands += self._fill_pool(pool, now)
        return commands

    def _share(self, pool: Pool) -> list[Command]:
        """Tell nodes what to own. A pool that was never targeted (`slots`) is owned whole and costs nothing here."""
        if pool.target is None:
            return []
        nodes = [node for node in self.nodes_of(pool) if node.ready]
        head = pool.queue.head()
        head_units = self.queued[head].pool_units if head is not None else 0
        wanted = pool.wanted(nodes, head_units)
        if wanted == pool.settled:
            return []
        shares = spread(wanted, nodes, pool.resource)
        pool.settled = wanted if sum(shares.values()) == wanted else None
        commands: list[Command] = []
        for node in nodes:
            owned = node.share.get(pool.resource, node.capacity.get(pool.resource, 0))
            if shares[node.name] != owned:
                node.share[pool.resource] = shares[node.name]
                commands.append(SetShare(node.name, pool.resource, shares[node.name]))
        return commands

    def _fill_pool(self, pool: Pool, now: float) -> Iterator[Command]:
        nodes = self.nodes_of(pool)
        while (head := pool.queue.head()) is not None:
            life = self.queued[head]
            node = place(nodes, life.work.kind, life.work.units, pool.resource)
            if node is None:
                yield from self._backfill(pool, nodes, life, now)
                return
            yield self._grant(life, node, now)

    def _backfill(self, pool: Pool, nodes: list[Node], head: Life, now: float) -> Iterator[Command]:
        """Pass a head that does not fit with what should end before its units are together."""
        if not any(node.ready and node.free(pool.resource) for node in nodes):
            return
        reserved = self._reservation(pool, nodes, head, now)
        for depth, name in enumerate(list(self._behind(pool))):
            life = self.queued[name]
            if depth == 0 or now + self.durations.expect(life.duration_key, life.work.timeout_s) > reserved:
                continue
            node = place(nodes, life.work.kind, life.work.units, pool.resource)
            if node is not None:
                yield self._grant(life, node, now)

    def _behind(self, pool: Pool) -> Iterator[str]:
        for depth, name in enumerate(pool.queue):
            if depth > BACKFILL_DEPTH:
                return
            yield name

    def _reservation(self, pool: Pool, nodes: list[Node], head: Life, now: float) -> float:
        """The earliest moment at which some node is predicted to have the head's units together.

        A head that no node of the pool could ever take reserves nothing: infinity, so all may pass it.
        """
        moments = []
        for node in nodes:
            if node.ready and node.could_ever(head.work.kind, head.work.units):
                ends = [
                    (life.expected_end_s, life.pool_units)
                    for life in self.granted.get(node.name, {}).values()
                    if life.work.pool == pool.name
                ]
                moments.append(reserve(now, head.pool_units, node.free(pool.resource), ends))
        return min(moments, default=float("inf"))

    def _grant(self, life: Life, node: Node, now: float) -> Grant:
        self._unqueue(life)
        life.move("granted")
        life.attempt += 1
        self.occupy(life, node, now)
        request, work = life.request, life.work
        expected = self.durations.expect(life.duration_key, work.timeout_s)
        self.pools[work.pool].queue.charge(request.tenant, expected * max(1, life.pool_units))
        budget = max(0.0, request.deadline_s - now)
        return Grant(request.id, node.name, life.attempt, life.stage, work.units, budget)
