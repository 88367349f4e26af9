"""The dispatcher's state machine: queues + nodes + grants. Stimulus in, commands out.

Laws, held by tests/policy/test_dispatch.py over random histories:
  - every request is answered exactly once, whatever happens to nodes, leaders and clients;
  - no unit is granted twice: units come back only by the node's word or with the end of its incarnation;
  - among requests of a pool that fit, the earliest batch goes first; a head that does not fit has its units reserved
    and only what should end before the reservation passes it;
  - a verdict (`ok`, `timeout`) is never made up: our failures have names of their own.

Times are absolute seconds of one monotonic scale, the one of the journal's ids.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shared.policy.floor import Floor
from shared.policy.formulation import (
    Advance,
    Answer,
    AskInventory,
    Command,
    EndedAs,
    Request,
    Revoke,
    StageAct,
)
from shared.policy.ledger import Node
from shared.policy.life import Life


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt's end, as its node tells it. Durations are seconds."""

    action: str
    node: str
    attempt: int
    stage: int
    status: str
    """ok, timeout, lost, refused, cancelled."""
    passed: bool | None = None
    queue_s: float = 0.0
    execution_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """One grant a node still executes, as its inventory tells it."""

    stage: int
    attempt: int
    running_s: float


@dataclass(slots=True)
class Dispatcher:
    """The leader's mind. Every stimulus takes the time and returns the commands that follow, in order."""

    max_attempts: int = 3
    node_lost_s: float = 10.0
    """A node silent for so long is taken for dead; its work runs elsewhere."""
    linger_s: float = 10.0
    """Units for work outside batches stay owned so long after it has gone."""
    overdue_s: float = 15.0
    """So long after its timeout a grant without outcome makes the leader ask the node what it holds."""
    floor: Floor = field(default_factory=Floor)
    lives: dict[str, Life] = field(default_factory=dict)
    """Every unanswered action."""
    _deadlines: list[tuple[float, str]] = field(default_factory=list)
    _members: dict[str, set[str]] = field(default_factory=dict)
    """Batch -> its unanswered actions."""
    _window_s: float = 0.0

    # ---- requests ----------------------------------------------------------------------------------------------

    def submitted(self, now: float, requests: Iterable[Request]) -> list[Command]:
        """New entries of the journal, in its order. Ids already known are passed over (a re-read journal)."""
        commands: list[Command] = []
        for request in requests:
            if request.id in self.lives:
                continue
            life = self.lives[request.id] = Life(request, queued_s=min(now, request.arrival[0] / 1000))
            self._members.setdefault(request.batch, set()).add(request.id)
            heapq.heappush(self._deadlines, (request.deadline_s, request.id))
            late = request.start_by_s is not None and self.floor.predict_start(life, now) > request.start_by_s
            self.floor.enqueue(life)
            if late:
                self.floor.dequeue(life)
                commands.append(self._answer(life, "expired", "it would start after its deadline: the pool is busy"))
        return commands + self.floor.fill(now)

    def resumed(self, now: float, action: str, stage: int, attempt: int, acts: Iterable[StageAct], node: str) -> None:
        """What the store says of an unanswered action that a former leader worked on.

        Call it after the action was submitted and before any node is ready. `node`: where its last attempt was granted,
        "" if nowhere; if that runs still, the inventory brings it back.
        """
        life = self.lives[action]
        self.floor.dequeue(life)
        life.stage, life.attempt, life.acts = stage, attempt, list(acts)
        self.floor.enqueue(life)
        if node and not life.work.repeatable:
            self.floor.set_aside(life, node, now)

    def cancelled(self, now: float, action: str, reason: str) -> list[Command]:
        """Somebody wants it no more. Queued: answered. Granted: revoked, and answered when the node confirms."""
        life = self.lives.get(action)
        if life is None or life.state == "cancelling":
            return []
        if life.state == "queued":
            self.floor.dequeue(life)
            return [self._answer(life, "cancelled", reason), *self.floor.fill(now)]
        life.move("cancelling")
        life.cancel_reason = reason
        return [Revoke(action, life.node, life.attempt)]

    def batch_cancelled(self, now: float, batch: str, reason: str) -> list[Command]:
        """Cancel all that is left of a batch."""
        members = sorted(self._members.get(batch, ()))
        return [command for name in members for command in self.cancelled(now, name, reason)]

    def completion_expected(self, batch: str, at_s: float) -> None:
        """The planner's estimate of T: the batch's queued requests move in the order."""
        self.floor.rekey(batch, at_s)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def node_said_hello(self, now: float, node: Node) -> list[Command]:
        """A node has started, or is met by a new leader. It gets nothing before it has told what it holds."""
        known = self.floor.nodes.get(node.name)
        if known is not None and known.incarnation == node.incarnation:
            known.seen_s = now
            return []
        commands = self.node_lost(now, node.name, "the node has restarted")
        node.seen_s = now
        self.floor.nodes[node.name] = node
        return [*commands, self._ask(node, now)]

    def node_seen(self, now: float, name: str, incarnation: str) -> bool:
        """A heartbeat. False: no such incarnation is known, so its hello must be read again."""
        node = self.floor.nodes.get(name)
        if node is None or node.incarnation != incarnation:
            return False
        node.seen_s = now
        return True

    def node_lost(self, now: float, name: str, why: str) -> list[Command]:
        """The end of an incarnation: what it held is lost with it."""
        if name not in self.floor.nodes:
            return []
        commands: list[Command] = []
        for life in self.floor.drop_node(name):
            commands += self._lost(life, "node-lost", f"{name}: {why}")
        return commands + self.floor.fill(now)

    def inventory_taken(self, now: float, name: str, incarnation: str, held: Mapping[str, Holding]) -> list[Command]:
        """A node's full account. Held and unanswered: adopted. Held but not ours: revoked. Ours but not held: lost."""
        node = self.floor.nodes.get(name)
        if node is None or node.incarnation != incarnation or node.asked_serial is None:
            return []
        commands: list[Command] = []
        for action, holding in held.items():
            life = self.lives.get(action)
            if life is not None and life.state == "queued" and life.stage == holding.stage:
                self.floor.adopt(life, node, now - holding.running_s)
                life.attempt = max(life.attempt, holding.attempt)
            elif life is not None and not life.booked and life.node == name:
                self.floor.occupy(life, node, now - holding.running_s)
            elif life is None or life.node != name or life.attempt != holding.attempt:
                commands.append(Revoke(action, name, holding.attempt))
        for life in list(self.floor.granted.get(name, {}).values()):
            if life.serial <= node.asked_serial and life.request.id not in held:
                self.floor.release(life)
                commands += self._lost(life, "node-lost", f"{name} no longer has it")
        node.ready, node.asked_serial = True, None
        self.floor.nodes_changed()
        return commands + self.floor.fill(now)

    def targeted(self, now: float, pool: str, units: int) -> list[Command]:
        """The planner wants so many units of a pool."""
        self.floor.pool(pool).target = units
        self.floor.dirty.add(pool)
        return self.floor.fill(now)

    # ---- outcomes ----------------------------------------------------------------------------------------------

    def started(self, action: str, attempt: int) -> None:
        """An attempt executes."""
        life = self.lives.get(action)
        if life is not None and life.attempt == attempt and life.state == "granted":
            life.move("running")

    def finished(self, now: float, ends: Iterable[Ended]) -> list[Command]:
        """Attempts have ended.

        A verdict on the current stage counts whichever attempt brings it; losses, refusals and cancellations count
        only for the attempt that is current.
        """
        commands: list[Command] = []
        for end in ends:
            commands += self._ended(now, end)
        return commands + self.floor.fill(now)

    def ticked(self, now: float) -> list[Command]:
        """Time has passed: deadlines, silent nodes, overdue grants, linger windows."""
        commands: list[Command] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            commands += self._deadline(heapq.heappop(self._deadlines)[1])
        for node in list(self.floor.nodes.values()):
            if now - node.seen_s > self.node_lost_s:
                commands += self.node_lost(now, node.name, f"silent for {now - node.seen_s:.0f} s")
            elif self._overdue(node, now):
                commands.append(self._ask(node, now))
        for name in self.floor.granted.keys() - self.floor.nodes.keys():
            for life in list(self.floor.granted[name].values()):
                if now - life.granted_s > self.node_lost_s:
                    self.floor.release(life)
                    commands += self._lost(life, "node-lost", f"{name} has not come back")
        if now - self._window_s >= self.linger_s:
            self._window_s = now
            for pool in self.floor.pools.values():
                pool.next_window()
                self.floor.dirty.add(pool.name)
        return commands + self.floor.fill(now)

    # ---- steps -------------------------------------------------------------------------------------------------

    def _ended(self, now: float, end: Ended) -> list[Command]:
        life = self.lives.get(end.action)
        if life is None or end.stage != life.stage:
            return []
        current = life.state != "queued" and end.attempt == life.attempt and end.node == life.node
        verdict = end.status in ("ok", "timeout")
        if not current and not verdict:
            return []
        commands: list[Command] = []
        if life.state == "queued":
            self.floor.dequeue(life)
        else:
            if not current:
                commands.append(Revoke(end.action, life.node, life.attempt))
            self.floor.release(life)
        return commands + (self._scored(now, life, end) if verdict else self._unscored(life, end))

    def _scored(self, now: float, life: Life, end: Ended) -> list[Command]:
        """The stage has a verdict: on to the next one, or answered (early exit of a failed stage)."""
        self.floor.durations.seen(life.duration_key, end.execution_s)
        waited = (life.granted_s or now) - life.queued_s + end.queue_s
        act = StageAct(
            life.work.name, max(0.0, waited), end.execution_s, end.node, max(1, life.attempt), life.pool_units
        )
        life.acts.append(act)
        last = life.stage + 1 == len(life.request.stages)
        if last or end.status == "timeout" or end.passed is False or life.state == "cancelling":
            return [self._answer(life, "timeout" if end.status == "timeout" else "ok", end.reason)]
        life.stage, life.attempt, life.queued_s, life.granted_s = life.stage + 1, 0, now, 0.0
        if life.state != "queued":
            life.move("queued")
        self.floor.enqueue(life)
        return [Advance(life.request.id, life.stage)]

    def _unscored(self, life: Life, end: Ended) -> list[Command]:
        if life.state == "cancelling" or end.status == "cancelled":
            return [self._answer(life, life.cancel_as, life.cancel_reason or end.reason)]
        if end.status == "refused":
            return [self._answer(life, "refused", end.reason)]
        return self._lost(life, "sandbox-lost", end.reason)

    def _lost(self, life: Life, ended: EndedAs, why: str) -> list[Command]:
        """An attempt is gone and its units are free: try again, or say what is known."""
        if life.state == "cancelling":
            return [self._answer(life, life.cancel_as, life.cancel_reason)]
        if not life.work.repeatable:
            return [self._answer(life, "unknown-outcome", f"{why}; it is not repeatable")]
        if life.attempt >= self.max_attempts:
            return [self._answer(life, ended, f"{why}; {life.attempt} attempts")]
        life.move("queued")
        self.floor.enqueue(life)
        return []

    def _deadline(self, action: str) -> list[Command]:
        life = self.lives.get(action)
        if life is None or life.state == "cancelling":
            return []
        if life.state == "queued":
            reason = f"its deadline came while it waited for {life.work.pool}"
            if not any(n.could_ever(life.work.kind, life.work.units) for n in self.floor.nodes.values()):
                reason = f"no node offers {life.work.kind} with {dict(life.work.units)}"
            self.floor.dequeue(life)
            return [self._answer(life, "expired", reason)]
        life.move("cancelling")
        life.cancel_as, life.cancel_reason = "expired", "its deadline came while it ran"
        return [Revoke(action, life.node, life.attempt)]

    def _overdue(self, node: Node, now: float) -> bool:
        if node.asked_serial is not None:
            return now - node.asked_s > self.overdue_s
        if now - node.asked_s < self.overdue_s:
            return False
        held = self.floor.granted.get(node.name, {})
        return any(now - life.granted_s > life.work.timeout_s + self.overdue_s for life in held.values())

    def _ask(self, node: Node, now: float) -> AskInventory:
        node.asked_serial, node.asked_s = self.floor.newest_serial, now
        return AskInventory(node.name)

    def _answer(self, life: Life, ended: EndedAs, reason: str) -> Answer:
        life.move("finished")
        request = life.request
        del self.lives[request.id]
        members = self._members[request.batch]
        members.discard(request.id)
        if not members:
            del self._members[request.batch]
        return Answer(request.id, ended, reason, tuple(life.acts))

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        on_nodes = {name for held in self.floor.granted.values() for name in held}
        assert on_nodes.isdisjoint(self.floor.queued), "on a node and in a queue"
        assert on_nodes | set(self.floor.queued) == set(self.lives), "neither on a node nor in a queue"
        for node in self.floor.nodes.values():
            for resource in node.capacity:
                lives = [life for life in self.floor.granted.get(node.name, {}).values() if life.booked]
                used = sum(life.work.units.get(resource, 0) for life in lives)
                assert used == node.used.get(resource, 0), f"{node.name}: ledger of {resource}"
                assert used <= node.capacity[resource], f"{node.name}: more {resource} granted than exist"
