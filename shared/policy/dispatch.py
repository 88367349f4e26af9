"""The dispatcher's state machine: queues + nodes + grants. Stimulus in, commands out.

Laws, held by tests/policy/test_dispatch_machine.py over random histories:
  - every request is answered exactly once, whatever happens to nodes, leaders and clients;
  - no unit is granted twice: units come back only by the node's word or with the end of its incarnation, also those of
    an attempt that is not wanted any more;
  - a verdict (`ok`, `timeout`) is never made up: our failures have names of their own;
  - what is not repeatable is never executed twice.
The order of grants is the law of `filling`.

Times are absolute seconds of one monotonic scale, the one of the journal's ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.policy.backlog import why_it_waited
from shared.policy.deadlines import Deadlines
from shared.policy.filling import fill, park_stuck, starts_by
from shared.policy.floor import Floor
from shared.policy.formulation import Advance, Answer, AskInventory, Command, EndedAs, Request, Revoke, StageAct
from shared.policy.ledger import Node
from shared.policy.life import Life
from shared.policy.reports import Ended, Held, Holding, holds

__all__ = ["Dispatcher", "Ended", "Holding"]


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
    _deadlines: Deadlines = field(default_factory=Deadlines)
    _members: dict[str, set[str]] = field(default_factory=dict)
    """Batch -> its unanswered actions."""
    _window_s: float = 0.0

    # ---- requests ----------------------------------------------------------------------------------------------

    def submitted(self, now: float, requests: Iterable[Request]) -> list[Command]:
        """New entries of the journal, in its order. Ids already known are passed over (a re-read journal).

        One whose start is predicted after its `start_by_s` is refused, unless it can start at once.
        """
        late: list[Life] = []
        for request in requests:
            if request.id in self.lives:
                continue
            life = self.lives[request.id] = Life(request, queued_s=request.arrival[0] / 1000)
            if request.batch:
                self._members.setdefault(request.batch, set()).add(request.id)
            self._deadlines.push(request.deadline_s, request.id)
            by_s = request.start_by_s
            if by_s is not None and not starts_by(self.floor, life, now, by_s):
                late.append(life)
            self.floor.enqueue(life)
            park_stuck(self.floor, life)
        commands = fill(self.floor, now)
        for life in late:
            if life.state == "queued":
                self.floor.dequeue(life)
                reason = "it would start after its deadline: the pool is busy"
                commands.append(self._answer(now, life, "expired", reason))
        return commands + fill(self.floor, now) if late else commands

    def resumed(self, now: float, action: str, stage: int, attempt: int, acts: Iterable[StageAct], node: str) -> None:
        """What the store says of an unanswered action that a former leader worked on.

        Call it after the action was submitted and before any node is ready. `node`: where its last attempt was granted,
        "" if nowhere. That node's outcome, inventory or end decides what becomes of it; until then it goes nowhere.
        """
        life = self.lives[action]
        self.floor.dequeue(life)
        life.enter(stage, attempt)
        life.acts = list(acts)
        life.queued_s += sum(act.queue_s + act.execution_s for act in life.acts)
        self.floor.enqueue(life)
        if node:
            self.floor.set_aside(life, node, now)

    def cancelled(self, now: float, action: str, reason: str) -> list[Command]:
        """Somebody wants it no more. Queued: answered. Granted: revoked, and answered when the node confirms."""
        return self._cancel(now, [action], reason) + fill(self.floor, now)

    def batch_cancelled(self, now: float, batch: str, reason: str) -> list[Command]:
        """Cancel all that is left of a batch."""
        return self._cancel(now, sorted(self._members.get(batch, ())), reason) + fill(self.floor, now)

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
        commands = self._dropped(now, node.name, "it has restarted", booked_only=True)
        node.seen_s = now
        self.floor.add_node(node)
        return [*commands, self._ask(node, now), *fill(self.floor, now)]

    def node_seen(self, now: float, name: str, incarnation: str) -> bool:
        """A heartbeat. False: no such incarnation is known, so its hello must be read again."""
        node = self.floor.nodes.get(name)
        if node is None or node.incarnation != incarnation:
            return False
        node.seen_s = now
        return True

    def node_lost(self, now: float, name: str, why: str) -> list[Command]:
        """The end of an incarnation: what it held is lost with it."""
        return self._dropped(now, name, why) + fill(self.floor, now) if name in self.floor.nodes else []

    def inventory_taken(self, now: float, name: str, incarnation: str, held: Held) -> list[Command]:
        """A node's full account. Held and unanswered: adopted. Held but not ours: revoked. Ours but not held: lost."""
        node = self.floor.nodes.get(name)
        asked = node.answered() if node is not None and node.incarnation == incarnation else None
        if node is None or asked is None:
            return []
        commands: list[Command] = []
        for action, holding in held.items():
            if not self.floor.take_back(now, node, self.lives.get(action), action, holding):
                commands.append(Revoke(action, name, holding.attempt))
            elif not holding.waits:
                self.lives[action].started_s = now - holding.running_s
        for life in list(self.floor.granted.get(name, {}).values()):
            if life.serial <= asked and not holds(held, life.request.id, life.stage, life.attempt):
                self.floor.release(life)
                commands += self._lost(now, life, "node-lost", f"{name} no longer has it")
        for action, stray in node.strays_until(asked):
            if not holds(held, action, stray.stage, stray.attempt):
                node.stray_ended(action, stray.stage, stray.attempt)
        node.ready = True
        self.floor.nodes_changed()
        return commands + fill(self.floor, now)

    def targeted(self, now: float, pool: str, units: int) -> list[Command]:
        """The planner wants so many units of a pool."""
        self.floor.pool(pool).target = units
        self.floor.dirty.add(pool)
        return fill(self.floor, now)

    def planned(self, now: float, lives: bool) -> list[Command]:
        """Does a planner live? Said now and then; until it is, one is taken to live.

        While none does, targets stay as they are and nothing queues for want of one; when it is back they rule again.
        """
        self.floor.planner(lives)
        return fill(self.floor, now)

    # ---- outcomes ----------------------------------------------------------------------------------------------

    def started(self, now: float, action: str, attempt: int) -> None:
        """An attempt executes."""
        life = self.lives.get(action)
        if life is not None and life.attempt == attempt and life.state == "granted":
            life.move("running")
            life.started_s = life.started_s or now

    def finished(self, now: float, ends: Iterable[Ended]) -> list[Command]:
        """Attempts have ended.

        A verdict on the current stage counts whichever attempt brings it; losses, refusals and cancellations count
        only for the attempt that is current.
        """
        commands: list[Command] = []
        for end in ends:
            commands += self._ended(now, end)
        return commands + fill(self.floor, now)

    def ticked(self, now: float) -> list[Command]:
        """Time has passed: deadlines, silent nodes, overdue grants, linger windows."""
        commands: list[Command] = []
        for action in self._deadlines.due(now):
            commands += self._deadline(now, action)
        for node in list(self.floor.nodes.values()):
            if now - node.seen_s > self.node_lost_s:
                commands += self._dropped(now, node.name, f"silent for {now - node.seen_s:.0f} s")
            elif self.floor.is_overdue(node, now, self.overdue_s):
                commands.append(self._ask(node, now))
        for life in self.floor.sat(now):
            commands.append(Revoke(life.request.id, life.node, life.attempt, recall=True))
            self.floor.disown(life, now)
            life.move("queued")
            life.recalls += 1
            self.floor.enqueue(life)
        for name in sorted(self.floor.granted.keys() - self.floor.nodes.keys()):
            for life in list(self.floor.granted[name].values()):
                if now - life.granted_s > self.node_lost_s:
                    self.floor.release(life)
                    commands += self._lost(now, life, "node-lost", f"{name} has not come back")
        if now - self._window_s >= self.linger_s:
            self._window_s = now
            for pool in self.floor.pools.values():
                pool.next_window()
                self.floor.dirty.add(pool.name)
        return commands + fill(self.floor, now)

    # ---- steps -------------------------------------------------------------------------------------------------

    def _dropped(self, now: float, name: str, why: str, *, booked_only: bool = False) -> list[Command]:
        """An incarnation is over. Nothing is granted yet: more may be over."""
        commands: list[Command] = []
        for life in self.floor.drop_node(name, booked_only=booked_only):
            commands += self._lost(now, life, "node-lost", f"{name}: {why}")
        return commands

    def _cancel(self, now: float, actions: Iterable[str], reason: str, ended: EndedAs = "cancelled") -> list[Command]:
        commands: list[Command] = []
        for action in actions:
            life = self.lives.get(action)
            if life is None or life.state == "cancelling":
                continue
            if life.state == "queued":
                self.floor.dequeue(life)
                commands.append(self._answer(now, life, ended, reason))
            else:
                life.move("cancelling")
                life.cancel_as, life.cancel_reason = ended, reason
                commands.append(Revoke(action, life.node, life.attempt))
        return commands

    def _ended(self, now: float, end: Ended) -> list[Command]:
        node = self.floor.nodes.get(end.node)
        if node is not None and node.strays:
            node.stray_ended(end.action, end.stage, end.attempt)
        life = self.lives.get(end.action)
        if life is None or end.stage != life.stage:
            return []
        current = life.state != "queued" and end.attempt == life.attempt and end.node == life.node
        if not current and not end.is_verdict:
            return []
        commands: list[Command] = []
        if current:
            self.floor.release(life)
        elif life.state == "queued":
            self.floor.dequeue(life)
        else:
            commands.append(Revoke(end.action, life.node, life.attempt))
            self.floor.disown(life, now)
        return commands + (self._scored(now, life, end) if end.is_verdict else self._unscored(now, life, end))

    def _scored(self, now: float, life: Life, end: Ended) -> list[Command]:
        """The stage has a verdict: on to the next one, or answered (early exit of a failed stage)."""
        self.floor.durations.seen(life.duration_key, end.execution_s)
        life.scored(now, end)
        if life.is_last or end.status == "timeout" or end.passed is False:
            return [self._answer(now, life, "timeout" if end.status == "timeout" else "ok", end.reason)]
        if life.state == "cancelling":
            return [self._answer(now, life, life.cancel_as, life.cancel_reason)]
        life.enter(life.stage + 1, attempt=0)
        if life.state != "queued":
            life.move("queued")
        self.floor.enqueue(life)
        return [Advance(life.request.id, life.stage)]

    def _unscored(self, now: float, life: Life, end: Ended) -> list[Command]:
        if end.status == "cancelled" and life.state != "cancelling":  # a former leader has asked for it
            late = life.request.deadline_s <= now
            return [self._answer(now, life, "expired" if late else "cancelled", end.reason, end)]
        if life.state == "cancelling":
            return [self._answer(now, life, life.cancel_as, life.cancel_reason, end)]
        if end.status == "refused":
            return [self._answer(now, life, "refused", end.reason, end)]
        return self._lost(now, life, "sandbox-lost", end.reason, end)

    def _lost(self, now: float, life: Life, ended: EndedAs, why: str, end: Ended | None = None) -> list[Command]:
        """An attempt is gone and its units are free: try again, or say what is known."""
        if life.state == "cancelling":
            return [self._answer(now, life, life.cancel_as, life.cancel_reason, end)]
        if not life.work.repeatable:
            return [self._answer(now, life, "unknown-outcome", f"{why}; it is not repeatable", end)]
        if life.attempt - life.recalls >= self.max_attempts:
            return [self._answer(now, life, ended, f"{why}; {life.attempt - life.recalls} attempts", end)]
        life.move("queued")
        self.floor.enqueue(life)
        return []

    def _deadline(self, now: float, action: str) -> list[Command]:
        life = self.lives.get(action)
        if life is None or life.state == "cancelling":
            return []
        waited = life.state == "queued" or life.ahead
        reason = why_it_waited(self.floor, life) if waited else "its deadline came while it ran"
        return self._cancel(now, [action], reason, "expired")

    def _ask(self, node: Node, now: float) -> AskInventory:
        node.ask(self.floor.newest_serial, now)
        return AskInventory(node.name)

    def _answer(self, now: float, life: Life, ended: EndedAs, reason: str, end: Ended | None = None) -> Answer:
        queue_s, execution_s = life.spent(now, end)
        life.move("finished")
        request = life.request
        del self.lives[request.id]
        self._deadlines.drop(request.id)
        if request.batch:
            members = self._members[request.batch]
            members.discard(request.id)
            if not members:
                del self._members[request.batch]
        return Answer(request.id, ended, reason, tuple(life.acts), queue_s, execution_s)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        on_nodes = {name for held in self.floor.granted.values() for name in held}
        assert on_nodes.isdisjoint(self.floor.queued), "on a node and in a queue"
        assert on_nodes | set(self.floor.queued) == set(self.lives), "neither on a node nor in a queue"
        assert self._members.keys() == {life.request.batch for life in self.lives.values()} - {""}, (
            "batches of what is left"
        )
        self.floor.check()
