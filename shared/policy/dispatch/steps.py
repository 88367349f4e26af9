"""What follows for one action from one event: the steps the dispatcher's stimuli are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.backlog import why_it_waited
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.deadlines import Deadlines
from shared.policy.model.formulation import (
    Advance,
    Answer,
    AskInventory,
    Command,
    EndedAs,
    EnvironmentNeed,
    ForgetTrajectory,
    Revoke,
    TrajectoryEnd,
)
from shared.policy.model.reports import Ended
from shared.policy.resources.ledger import Node

LEAST_POSTPONED_S, MOST_POSTPONED_S = 1.0, 600.0
"""Bounds of what a node may ask for."""


@dataclass(slots=True)
class Steps:
    """The leader's memory, and the steps it takes. `Dispatcher` says what leads to which."""

    max_attempts: int = 3
    node_lost_s: float = 10.0
    """A node silent for so long is taken for dead; its work runs elsewhere."""
    linger_s: float = 10.0
    """Units for work outside batches stay owned so long after it has gone."""
    overdue_s: float = 15.0
    """So long after its timeout a grant without outcome makes the leader ask the node what it holds."""
    home_lost_s: float = 60.0
    """Environments of a node that has been away for so long are taken for lost; until then it may bring them back."""
    floor: ClusterState = field(default_factory=ClusterState)
    lives: dict[str, ActionState] = field(default_factory=dict)
    """Every unanswered action."""
    _deadlines: Deadlines = field(default_factory=Deadlines)
    _members: dict[str, set[str]] = field(default_factory=dict)
    """Batch -> its unanswered actions."""
    _window_s: float = 0.0

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
        if node is not None and node.orphans:
            node.orphan_ended(end.action, end.stage, end.attempt)
        life = self.lives.get(end.action)
        if life is None or end.stage != life.stage:
            return []
        commands: list[Command] = []
        if end.is_verdict and end.units and not life.booked:
            life.units = end.units
        current = life.state != "queued" and end.attempt == life.attempt and end.node == life.node
        stay = life.request.stay
        if current and stay is not None and end.environment_stands:
            self.floor.made(stay.trajectory, end.node)
        elif current and stay is not None:
            commands = self._unmade(now, stay, end)
        if not current and not end.is_verdict:
            return commands
        if current:
            self.floor.release(life)
        elif life.state == "queued":
            self.floor.dequeue(life)
        else:
            commands.append(Revoke(end.action, life.node, life.attempt))
            self.floor.orphan(life, now)
        return commands + (self._scored(now, life, end) if end.is_verdict else self._unscored(now, life, end))

    def _scored(self, now: float, life: ActionState, end: Ended) -> list[Command]:
        """The stage has a verdict: on to the next one, or answered (early exit of a failed stage)."""
        if not life.begins:  # else its time is that of making an environment as well
            self.floor.learn(life, end.execution_s)
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

    def _unscored(self, now: float, life: ActionState, end: Ended) -> list[Command]:
        if end.status == "cancelled" and life.state != "cancelling":  # a former leader has asked for it
            late = life.request.deadline_s <= now
            return [self._answer(now, life, "expired" if late else "cancelled", end.reason, end)]
        if life.state == "cancelling":
            return [self._answer(now, life, life.cancel_as, life.cancel_reason, end)]
        stay = life.request.stay
        if end.status == "environment-lost" and stay is not None:
            gone = self._moved_out(now, stay.trajectory, end.environment_ended, end.reason)
            return [*gone, self._answer(now, life, "environment-lost", end.reason, end)]
        if end.status == "refused":
            return [self._answer(now, life, "refused", end.reason, end)]
        if end.status == "postponed" and not end.environment_stands:
            return self._postponed(now, life, end)
        return self._lost(now, life, "sandbox-lost", end.reason, end)

    def _lost(self, now: float, life: ActionState, ended: EndedAs, why: str, end: Ended | None = None) -> list[Command]:
        """An attempt is gone and its units are free: try again, or say what is known."""
        if life.state == "cancelling":
            return [self._answer(now, life, life.cancel_as, life.cancel_reason, end)]
        stay, begun = life.request.stay, end is None or end.environment_stands
        if stay is not None and (reason := self.floor.trajectories.ended.get(stay.trajectory)) is not None:
            return [self._answer(now, life, "environment-lost", reason, end)]
        if not life.work.repeatable and begun:
            return [self._answer(now, life, "unknown-outcome", f"{why}; it is not repeatable", end)]
        if life.attempt - life.recalls >= self.max_attempts:
            return [self._answer(now, life, ended, f"{why}; {life.attempt - life.recalls} attempts", end)]
        life.move("queued")
        self.floor.enqueue(life)
        return []

    def _postponed(self, now: float, life: ActionState, end: Ended) -> list[Command]:
        """Its environment cannot be made before a while. That is no failed attempt, so only its deadline bounds it."""
        ended = self.floor.trajectories.ended.get(life.request.stay.trajectory) if life.request.stay else None
        if ended is not None:
            return [self._answer(now, life, "environment-lost", ended, end)]
        life.move("queued")
        life.recalls += 1
        life.postponed = end.reason
        self.floor.enqueue(life)
        self.floor.postpone(life, now + min(max(end.retry_in_s, LEAST_POSTPONED_S), MOST_POSTPONED_S))
        return []

    def _deadline(self, now: float, action: str) -> list[Command]:
        life = self.lives.get(action)
        if life is None or life.state == "cancelling":
            return []
        waited = life.state == "queued" or life.ahead
        reason = why_it_waited(self.floor, life) if waited else "its deadline came while it ran"
        return self._cancel(now, [action], reason, "expired")

    # ---- trajectories ------------------------------------------------------------------------------------------

    def _unmade(self, now: float, stay: EnvironmentNeed, end: Ended) -> list[Command]:
        """The attempt that was to make its environment could not: it lives nowhere, and may begin anew."""
        trajectory, node = stay.trajectory, self.floor.nodes.get(end.node)
        if node is not None and end.status == "lost" and stay.image:
            node.images.unmade(stay.image, now)
        home = self.floor.trajectories.homes.get(trajectory)
        if home is None or home.node != end.node or home.closing:
            return []
        self.floor.move_out(trajectory)
        return [ForgetTrajectory(trajectory, "unmade", end.reason)]

    def _moved_out(self, now: float, trajectory: str, ended: TrajectoryEnd, reason: str) -> list[Command]:
        """Its environment is no more: what waits for it is answered; what a node still holds of it, that node ends."""
        known = self.floor.trajectories
        home = self.floor.move_out(trajectory)
        if home is None and trajectory in known.ended:
            return []
        if home is not None and home.closing:
            ended, reason = "closed", known.ended.get(trajectory, reason)
        known.end(trajectory, reason)
        return [*self._evict(now, trajectory, reason), ForgetTrajectory(trajectory, ended, reason)]

    def _evict(self, now: float, trajectory: str, reason: str) -> list[Command]:
        """Answer every action of it that waits."""
        commands: list[Command] = []
        for action in list(self.floor.trajectories.turns.get(trajectory, ())):
            life = self.lives[action]
            if life.state == "queued":
                self.floor.dequeue(life)
                commands.append(self._answer(now, life, "environment-lost", reason))
        return commands

    def _ask(self, node: Node, now: float) -> AskInventory:
        node.ask(self.floor.newest_serial, now)
        return AskInventory(node.name)

    def _answer(self, now: float, life: ActionState, ended: EndedAs, reason: str, end: Ended | None = None) -> Answer:
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
        if request.stay is not None:
            following = self.floor.trajectories.answered(request.stay.trajectory, request.id)
            if following is not None and self.lives[following].state == "queued":
                # It waited behind this one. (Where a leader died over this answer, it may be granted already.)
                self.floor.dequeue(self.lives[following])
                self.floor.enqueue(self.lives[following])
        return Answer(request.id, ended, reason, tuple(life.acts), queue_s, execution_s)
