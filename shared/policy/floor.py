"""The floor where work meets units: who waits in which pool, and who holds what on which node.

Law: a request is in exactly one pool (queued) or on exactly one node (granted, running, cancelling), or answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose

from shared.policy.batches import BatchBook
from shared.policy.estimates import Durations
from shared.policy.ledger import Node, Stray
from shared.policy.life import Life
from shared.policy.pools import Pool
from shared.policy.reports import Holding

MOST_GONE = 1024
"""Nodes taken for dead that are remembered."""


@dataclass(slots=True)
class Floor:
    """Queues and nodes; `filling` decides who gets what."""

    batches: BatchBook = field(default_factory=BatchBook)
    durations: Durations = field(default_factory=Durations)
    nodes: dict[str, Node] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    granted: dict[str, dict[str, Life]] = field(default_factory=dict)
    """Node -> action -> life: what is granted there."""
    queued: dict[str, Life] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    """Pools whose shares may have to change; only those that the planner scales."""
    newest_serial: int = 0
    """Of the newest grant."""
    _gone: dict[str, Node] = field(default_factory=dict)
    """Nodes taken for dead that had questions to answer; the newest incarnation of each name."""
    _by_class: dict[str, list[Node]] = field(default_factory=dict)
    """Nodes of a class by name, while the set of nodes stays as it is."""

    def pool(self, name: str) -> Pool:
        """The pool of that name, made at first sight."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
        return pool

    def nodes_of(self, pool: Pool) -> list[Node]:
        """Nodes that belong to a pool, by name. Not to be changed by the caller."""
        nodes = self._by_class.get(pool.node_class)
        if nodes is None:
            nodes = [node for _, node in sorted(self.nodes.items()) if node.node_class == pool.node_class]
            self._by_class[pool.node_class] = nodes
        return nodes

    # ---- queues ------------------------------------------------------------------------------------------------

    def enqueue(self, life: Life) -> None:
        """Queue a life's current stage."""
        request = life.request
        pool = self.pool(life.work.pool)
        pool.queue.push(request.tenant, self.batches.key(request, self.durations), request.id)
        self.batches.waits(request)
        self.queued[request.id] = life
        life.expected_s = self.durations.expect(life.duration_key, life.work.timeout_s)
        pool.queued_s += life.expected_s * life.pool_units
        if not request.batch:
            pool.note_outside(life.pool_units)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def dequeue(self, life: Life) -> None:
        """Take a queued life out of its queue for good (answered, or about to be queued elsewhere)."""
        self.unqueue(life)
        self._left(life)

    def unqueue(self, life: Life) -> None:
        """Take a queued life out of its queue because it is on a node from now on."""
        request = life.request
        pool = self.pool(life.work.pool)
        if not pool.queue.remove(request.tenant, request.id):
            pool.parked.remove(request.id)
        pool.queued_s -= life.expected_s * life.pool_units
        self.batches.leaves(request)
        del self.queued[request.id]

    def park(self, pool: Pool, life: Life) -> None:
        """No node could ever take it: it waits aside, until nodes change or its deadline comes."""
        pool.queue.remove(life.request.tenant, life.request.id)
        pool.parked.add(life.request.id)

    def rekey(self, batch: str, at_s: float) -> None:
        """A batch's expected completion has a new estimate: its queued requests move."""
        for request in self.batches.expected(batch, at_s):
            pool = self.pool(self.queued[request.id].work.pool)
            if request.id not in pool.parked:
                pool.queue.update(request.tenant, self.batches.key(request, self.durations), request.id)

    def _left(self, life: Life) -> None:
        pool = self.pool(life.work.pool)
        if not life.request.batch:
            pool.note_outside(-life.pool_units)
        if pool.target is not None:
            self.dirty.add(pool.name)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def occupy(self, life: Life, node: Node, now: float) -> None:
        """Book a life on a node: units taken."""
        work = life.work
        node.take(work.units)
        self.newest_serial += 1
        life.node, life.booked, life.serial, life.granted_s = node.name, True, self.newest_serial, now
        life.expected_end_s = now + life.expected_s
        self.granted.setdefault(node.name, {})[life.request.id] = life

    def adopt(self, life: Life, node: Node, now: float) -> None:
        """A node holds what we had queued (granted under a former leader): from the queue onto the node."""
        self.unqueue(life)
        life.move("granted")
        self.occupy(life, node, now)

    def set_aside(self, life: Life, node: str, now: float) -> None:
        """The store says a former leader granted it there, so it may run: only that node can tell."""
        self.unqueue(life)
        life.move("granted")
        life.node, life.granted_s, life.expected_end_s = node, now, now
        self.granted.setdefault(node, {})[life.request.id] = life

    def release(self, life: Life) -> None:
        """The node is done with a life: units free."""
        node = self.nodes.get(life.node)
        if life.booked and node is not None:
            node.give_back(life.work.units)
        self._off_node(life)

    def disown(self, life: Life, now: float) -> None:
        """A life leaves a node that still executes it (and is told to stop): its units stay taken until it has."""
        node = self.nodes.get(life.node)
        if life.booked and node is not None:
            node.strays[life.request.id] = Stray(life.stage, life.attempt, life.work.units, life.serial, now)
        self._off_node(life)

    def take_back(self, now: float, node: Node, life: Life | None, action: str, holding: Holding) -> bool:
        """Make what a node holds ours again, if it is; False: it must be revoked, its units are taken until it has.

        An attempt older than the newest is not taken back: another one may run, and numbers are never used twice.
        """
        if life is not None and life.stage == holding.stage and life.attempt <= holding.attempt:
            if life.state == "queued":
                self.adopt(life, node, now - holding.running_s)
            elif life.node == node.name and not life.booked:
                self.occupy(life, node, now - holding.running_s)
            if life.node == node.name:
                life.attempt = holding.attempt
                return True
        units = holding.units if life is None else life.request.stages[holding.stage].units
        known = node.strays.pop(action, None)
        if known is not None:
            node.give_back(known.units)
        node.take(units)
        node.strays[action] = Stray(holding.stage, holding.attempt, units, 0, now if known is None else known.since_s)
        return False

    def is_overdue(self, node: Node, now: float, overdue_s: float) -> bool:
        """Should it be asked (again) what it holds? Not more often than once in `overdue_s`."""
        if now - node.asked_s < overdue_s:
            return False
        return (
            bool(node.asked)
            or any(now - stray.since_s > overdue_s for stray in node.strays.values())
            or any(
                now - life.granted_s > life.work.timeout_s + overdue_s
                for life in self.granted.get(node.name, {}).values()
            )
        )

    def _off_node(self, life: Life) -> None:
        del self.granted[life.node][life.request.id]
        life.node, life.booked = "", False
        self._left(life)

    def add_node(self, node: Node) -> None:
        """A node is met. Nothing is granted on it before it is ready."""
        gone = self._gone.pop(node.name, None)
        if gone is not None:
            node.remember(gone)
        self.nodes[node.name] = node
        self._by_class.clear()

    def drop_node(self, name: str, *, booked_only: bool = False) -> list[Life]:
        """Forget a node. Returns the lives it held, ordered, each released.

        `booked_only`: what is set aside for the word of a node of this name stays so.
        """
        node = self.nodes.pop(name, None)
        if node is not None and node.asked:
            self._gone[name] = node
            while len(self._gone) > MOST_GONE:
                del self._gone[next(iter(self._gone))]
        lives = [life for life in self.granted.get(name, {}).values() if life.booked or not booked_only]
        lives.sort(key=lambda life: life.serial)
        for life in lives:
            self.release(life)
        if not self.granted.get(name):
            self.granted.pop(name, None)
        self.nodes_changed()
        return lives

    def nodes_changed(self) -> None:
        """Shares must be spread anew over the nodes there are, and what none could take may find one."""
        self._by_class.clear()
        for pool in self.pools.values():
            pool.settled, pool.feasible = None, ""
            self.dirty.add(pool.name)
            for action in sorted(pool.parked):
                request = self.queued[action].request
                pool.queue.push(request.tenant, self.batches.key(request, self.durations), action)
            pool.parked.clear()

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for pool in self.pools.values():
            pool.queue.check()
            waiting = {*pool.queue, *pool.parked}
            assert len(waiting) == len(pool.queue) + len(pool.parked), f"{pool.name}: queued and parked"
            mine = {name for name, life in self.queued.items() if life.work.pool == pool.name}
            assert waiting == mine, f"{pool.name}: its queue holds what waits for it"
            queued_s = sum(self.queued[name].expected_s * self.queued[name].pool_units for name in mine)
            assert isclose(queued_s, pool.queued_s, abs_tol=1e-6), f"{pool.name}: unit-seconds that wait"
            lives = [*self.queued.values(), *(life for held in self.granted.values() for life in held.values())]
            outside = sum(x.pool_units for x in lives if x.work.pool == pool.name and not x.request.batch)
            assert outside == pool.outside, f"{pool.name}: units wanted outside batches"
        for node in self.nodes.values():
            lives = [life for life in self.granted.get(node.name, {}).values() if life.booked]
            assert node.strays.keys().isdisjoint(life.request.id for life in lives), f"{node.name}: one action twice"
            booked = [*(life.work.units for life in lives), *(stray.units for stray in node.strays.values())]
            for resource in {*node.capacity, *node.used}:
                used = sum(units.get(resource, 0) for units in booked)
                assert used == node.used.get(resource, 0), f"{node.name}: ledger of {resource}"
                assert used <= node.capacity.get(resource, 0), f"{node.name}: more {resource} granted than exist"
