"""The floor where work meets units: who waits in which pool, and who holds what on which node.

Law: a request is in exactly one pool (queued) or on exactly one node (granted, running, cancelling), or answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isclose

from shared.policy.ahead import RECALL_S, Ahead
from shared.policy.batches import BatchBook
from shared.policy.estimates import Durations
from shared.policy.ledger import Node, Stray, place
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
    ahead: Ahead = field(default_factory=Ahead)
    """What is granted and stands in its node's line."""
    dirty: set[str] = field(default_factory=set)
    """Pools whose shares may have to change; only those that the planner scales."""
    planned: bool = True
    """A planner lives. While none does, targets stay and a zero-queue rule serves beside them."""
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
        pool.note(life.pool_units, outside=not request.batch)
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
        pool.note(-life.pool_units, outside=not life.request.batch)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def planner(self, lives: bool) -> None:
        """A planner lives, or none does: where that is news, every pool is shared out by the other rule."""
        if self.planned != lives:
            self.planned = lives
            self.dirty.update(self.pools)
            for pool in self.pools.values():
                pool.feasible = ""  # whether the head fits what is owned must be seen anew

    # ---- nodes -------------------------------------------------------------------------------------------------

    def occupy(self, life: Life, node: Node, now: float) -> None:
        """Book a life on a node: units taken."""
        self._onto(life, node, now)
        self._book(life, node, now)

    def stand(self, life: Life, node: Node, now: float) -> None:
        """Put a life into a node's line: no units taken before it starts."""
        self._onto(life, node, now)
        self.ahead.join(life)

    def started_ahead(self, life: Life, node: Node, now: float) -> None:
        """A life of a node's line has been started there, or will be at once."""
        self.ahead.leave(life)
        self._book(life, node, now)

    def promote(self, now: float) -> None:
        """Where units are free, book the first of the line: the node has started it by itself."""
        for name in list(self.ahead.lines):
            node = self.nodes[name]
            while (life := self.ahead.first(node)) is not None and node.holds(life.work.units):
                self.started_ahead(life, node, now)

    def sat(self, now: float) -> Iterator[Life]:
        """Lives to be recalled from lines: they have stood for too long, and need not or should not stand there.

        Work that was taken for short and still runs is not waited for any more. Where only such work is left, or where
        another node could start it, what stands is better off in the queue, where order and deadlines hold.
        """
        for name in list(self.ahead.short):
            for life in self.granted.get(name, {}).values():
                if life.short and now - life.expected_end_s > RECALL_S:
                    self.ahead.lasts(life)
        for life in self.ahead.sat(now):
            work, pool = life.work, self.pool(life.work.pool)
            elsewhere = place(self.nodes_of(pool), life.request.id, work.kind, work.units, pool.resource)
            if elsewhere is not None or life.node not in self.ahead.short:
                yield life

    def _onto(self, life: Life, node: Node, now: float) -> None:
        self.newest_serial += 1
        life.node, life.serial, life.granted_s = node.name, self.newest_serial, now
        life.expected_end_s = now + life.expected_s
        self.granted.setdefault(node.name, {})[life.request.id] = life

    def _book(self, life: Life, node: Node, now: float) -> None:
        node.take(life.work.units)
        life.booked, life.expected_end_s = True, now + life.expected_s
        self.ahead.booked(life)

    def adopt(self, life: Life, node: Node, now: float, *, waits: bool = False) -> None:
        """A node holds what we had queued (granted under a former leader): from the queue onto the node."""
        self.unqueue(life)
        life.move("granted")
        (self.stand if waits else self.occupy)(life, node, now)

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
        if (life.booked or life.ahead) and node is not None:
            units = life.work.units if life.booked else {}
            node.strays[life.request.id] = Stray(life.stage, life.attempt, units, life.serial, now)
        self._off_node(life)

    def take_back(self, now: float, node: Node, life: Life | None, action: str, holding: Holding) -> bool:
        """Make what a node holds ours again, if it is; False: it must be revoked, its units are taken until it has.

        An attempt older than the newest is not taken back: another one may run, and numbers are never used twice.
        """
        if life is not None and life.stage == holding.stage and life.attempt <= holding.attempt:
            since_s = now - holding.running_s
            if life.state == "queued":
                self.adopt(life, node, since_s, waits=holding.waits)
            elif life.ahead and life.node == node.name and not holding.waits:
                self.started_ahead(life, node, since_s)
            elif life.node == node.name and not life.booked and not life.ahead:
                (self.stand if holding.waits else self.occupy)(life, node, since_s)
            if life.node == node.name:
                life.attempt = holding.attempt
                return True
        units = holding.units if life is None else life.request.stages[holding.stage].units
        if holding.waits:
            units = {}
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
        self.ahead.lasts(life)
        if life.ahead:
            self.ahead.leave(life)
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
        known = self.granted.get(name, {}).values()
        lives = [life for life in known if life.booked or life.ahead or not booked_only]
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
            wanted = [(x.pool_units, x.request.batch) for x in lives if x.work.pool == pool.name]
            assert sum(units for units, _ in wanted) == pool.demand.units, f"{pool.name}: units wanted"
            outside = sum(units for units, batch in wanted if not batch)
            assert outside == pool.outside.units, f"{pool.name}: units wanted outside batches"
        for node in self.nodes.values():
            lives = [life for life in self.granted.get(node.name, {}).values() if life.booked]
            self._check_line(node, lives)
            assert node.strays.keys().isdisjoint(life.request.id for life in lives), f"{node.name}: one action twice"
            booked = [*(life.work.units for life in lives), *(stray.units for stray in node.strays.values())]
            for resource in {*node.capacity, *node.used}:
                used = sum(units.get(resource, 0) for units in booked)
                assert used == node.used.get(resource, 0), f"{node.name}: ledger of {resource}"
                assert used <= node.capacity.get(resource, 0), f"{node.name}: more {resource} granted than exist"

    def _check_line(self, node: Node, booked: list[Life]) -> None:
        line = self.ahead.lines.get(node.name)
        stands = {name for name, life in self.granted.get(node.name, {}).items() if life.ahead}
        assert stands == (line.lives.keys() if line is not None else set()), f"{node.name}: its line"
        short = sum(life.pool_units for life in booked if life.short)
        assert short == self.ahead.short.get(node.name, 0), f"{node.name}: units of short work"
        first = self.ahead.first(node)
        assert first is None or not node.holds(first.work.units), f"{node.name}: units are free, and its line waits"
