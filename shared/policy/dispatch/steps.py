"""Steps of the dispatcher: the consequences of one event for one action."""

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
"""Bounds of the delay that a node may ask for."""


@dataclass(slots=True)
class Steps:
    """State of the dispatcher, and the steps from which `Dispatcher` composes its stimuli."""

    max_attempts: int = 3
    node_lost_s: float = 10.0
    """Seconds of silence after which a node is lost; its work runs elsewhere."""
    linger_s: float = 10.0
    """Seconds for which units for work outside batches stay owned after the work has ended."""
    overdue_s: float = 15.0
    """Seconds after its timeout at which a grant without outcome makes the leader ask the node for an inventory."""
    placement_lost_s: float = 60.0
    """Seconds after which environments of an absent node are lost; until then it may bring them back."""
    cluster: ClusterState = field(default_factory=ClusterState)
    actions: dict[str, ActionState] = field(default_factory=dict)
    """Every unanswered action."""
    _deadlines: Deadlines = field(default_factory=Deadlines)
    _members: dict[str, set[str]] = field(default_factory=dict)
    """Batch -> its unanswered actions."""
    _window_s: float = 0.0

    def _dropped(self, now: float, name: str, why: str, *, booked_only: bool = False) -> list[Command]:
        """Remove an ended incarnation. Nothing is granted yet, because more incarnations may have ended."""
        commands: list[Command] = []
        for action in self.cluster.drop_node(name, booked_only=booked_only):
            commands += self._lost(now, action, "node-lost", f"{name}: {why}")
        return commands

    def _cancel(
        self, now: float, action_ids: Iterable[str], reason: str, ended: EndedAs = "cancelled"
    ) -> list[Command]:
        commands: list[Command] = []
        for action_id in action_ids:
            action = self.actions.get(action_id)
            if action is None or action.state == "cancelling":
                continue
            if action.state == "queued":
                self.cluster.dequeue(action)
                commands.append(self._answer(now, action, ended, reason))
            else:
                action.move("cancelling")
                action.cancel_as, action.cancel_reason = ended, reason
                commands.append(Revoke(action_id, action.node, action.attempt))
        return commands

    def _ended(self, now: float, end: Ended) -> list[Command]:
        node = self.cluster.nodes.get(end.node)
        if node is not None and node.orphans:
            node.orphan_ended(end.action, end.stage, end.attempt)
        action = self.actions.get(end.action)
        if action is None or end.stage != action.stage:
            return []
        commands: list[Command] = []
        if end.is_verdict and end.units and not action.booked:
            action.units = end.units
        current = action.state != "queued" and end.attempt == action.attempt and end.node == action.node
        need = action.request.need
        if current and need is not None and end.environment_exists:
            self.cluster.made(need.trajectory, end.node)
        elif current and need is not None:
            commands = self._unmade(now, need, end)
        if not current and not end.is_verdict:
            return commands
        if current:
            self.cluster.release(action)
        elif action.state == "queued":
            self.cluster.dequeue(action)
        else:
            commands.append(Revoke(end.action, action.node, action.attempt))
            self.cluster.orphan(action, now)
        return commands + (self._scored(now, action, end) if end.is_verdict else self._unscored(now, action, end))

    def _scored(self, now: float, action: ActionState, end: Ended) -> list[Command]:
        """The stage has a verdict: continue with the next stage, or answer (early exit of a failed stage)."""
        if not action.begins:  # else the time includes the creation of the environment
            self.cluster.learn(action, end.execution_s)
        action.scored(now, end)
        if action.is_last or end.status == "timeout" or end.passed is False:
            return [self._answer(now, action, "timeout" if end.status == "timeout" else "ok", end.reason)]
        if action.state == "cancelling":
            return [self._answer(now, action, action.cancel_as, action.cancel_reason)]
        action.enter(action.stage + 1, attempt=0)
        if action.state != "queued":
            action.move("queued")
        self.cluster.enqueue(action)
        return [Advance(action.request.id, action.stage)]

    def _unscored(self, now: float, action: ActionState, end: Ended) -> list[Command]:
        if end.status == "cancelled" and action.state != "cancelling":  # a former leader has asked for it
            late = action.request.deadline_s <= now
            return [self._answer(now, action, "expired" if late else "cancelled", end.reason, end)]
        if action.state == "cancelling":
            return [self._answer(now, action, action.cancel_as, action.cancel_reason, end)]
        need = action.request.need
        if end.status == "environment-lost" and need is not None:
            gone = self._moved_out(now, need.trajectory, end.environment_ended, end.reason)
            return [*gone, self._answer(now, action, "environment-lost", end.reason, end)]
        if end.status == "refused":
            return [self._answer(now, action, "refused", end.reason, end)]
        if end.status == "postponed" and not end.environment_exists:
            return self._postponed(now, action, end)
        return self._lost(now, action, "sandbox-lost", end.reason, end)

    def _lost(
        self, now: float, action: ActionState, ended: EndedAs, why: str, end: Ended | None = None
    ) -> list[Command]:
        """An attempt is lost and its units are free: retry, or answer with what is known."""
        if action.state == "cancelling":
            return [self._answer(now, action, action.cancel_as, action.cancel_reason, end)]
        need, begun = action.request.need, end is None or end.environment_exists
        if need is not None and (reason := self.cluster.trajectories.ended.get(need.trajectory)) is not None:
            return [self._answer(now, action, "environment-lost", reason, end)]
        if not action.work.repeatable and begun:
            return [self._answer(now, action, "unknown-outcome", f"{why}; it is not repeatable", end)]
        if action.attempt - action.recalls >= self.max_attempts:
            return [self._answer(now, action, ended, f"{why}; {action.attempt - action.recalls} attempts", end)]
        action.move("queued")
        self.cluster.enqueue(action)
        return []

    def _postponed(self, now: float, action: ActionState, end: Ended) -> list[Command]:
        """Its environment cannot be created yet. That is no failed attempt, so only the deadline bounds the retries."""
        ended = self.cluster.trajectories.ended.get(action.request.need.trajectory) if action.request.need else None
        if ended is not None:
            return [self._answer(now, action, "environment-lost", ended, end)]
        action.move("queued")
        action.recalls += 1
        action.postponed = end.reason
        self.cluster.enqueue(action)
        self.cluster.postpone(action, now + min(max(end.retry_in_s, LEAST_POSTPONED_S), MOST_POSTPONED_S))
        return []

    def _deadline(self, now: float, action_id: str) -> list[Command]:
        action = self.actions.get(action_id)
        if action is None or action.state == "cancelling":
            return []
        waited = action.state == "queued" or action.ahead
        reason = why_it_waited(self.cluster, action) if waited else "its deadline came while it ran"
        return self._cancel(now, [action_id], reason, "expired")

    # ---- trajectories ------------------------------------------------------------------------------------------

    def _unmade(self, now: float, need: EnvironmentNeed, end: Ended) -> list[Command]:
        """An attempt failed to create the environment: remove its placement, so that another attempt may begin it
        elsewhere.
        """
        trajectory, node = need.trajectory, self.cluster.nodes.get(end.node)
        if node is not None and end.status == "lost" and need.image:
            node.images.unmade(need.image, now)
        placement = self.cluster.trajectories.placements.get(trajectory)
        if placement is None or placement.node != end.node or placement.closing:
            return []
        self.cluster.move_out(trajectory)
        return [ForgetTrajectory(trajectory, "unmade", end.reason)]

    def _moved_out(self, now: float, trajectory: str, ended: TrajectoryEnd, reason: str) -> list[Command]:
        """An environment has ended: remove its placement, end its trajectory and answer the actions that wait for
        it.
        """
        known = self.cluster.trajectories
        placement = self.cluster.move_out(trajectory)
        if placement is None and trajectory in known.ended:
            return []
        if placement is not None and placement.closing:
            ended, reason = "closed", known.ended.get(trajectory, reason)
        known.end(trajectory, reason)
        return [*self._evict(now, trajectory, reason), ForgetTrajectory(trajectory, ended, reason)]

    def _evict(self, now: float, trajectory: str, reason: str) -> list[Command]:
        """Answer every waiting action of the trajectory."""
        commands: list[Command] = []
        for action_id in list(self.cluster.trajectories.turns.get(trajectory, ())):
            action = self.actions[action_id]
            if action.state == "queued":
                self.cluster.dequeue(action)
                commands.append(self._answer(now, action, "environment-lost", reason))
        return commands

    def _ask(self, node: Node, now: float) -> AskInventory:
        node.ask(self.cluster.newest_serial, now)
        return AskInventory(node.name)

    def _answer(self, now: float, action: ActionState, ended: EndedAs, reason: str, end: Ended | None = None) -> Answer:
        queue_s, execution_s = action.spent(now, end)
        action.move("finished")
        request = action.request
        del self.actions[request.id]
        self._deadlines.drop(request.id)
        if request.batch:
            members = self._members[request.batch]
            members.discard(request.id)
            if not members:
                del self._members[request.batch]
        if request.need is not None:
            following = self.cluster.trajectories.answered(request.need.trajectory, request.id)
            if following is not None and self.actions[following].state == "queued":
                # It waited behind this one. (If a former leader died while it wrote this answer, it may be granted
                # already.)
                self.cluster.dequeue(self.actions[following])
                self.cluster.enqueue(self.actions[following])
        return Answer(request.id, ended, reason, tuple(action.acts), queue_s, execution_s)
