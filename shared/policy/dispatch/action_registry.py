"""Registry of unanswered actions: from their submission to their answer.

Law: every action is answered exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.backlog import upstream_failure, why_it_waited
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.deadlines import Deadlines
from shared.policy.model.formulation import AnswerAction, Command, EndedAs, Request, Revoke
from shared.policy.model.reports import Ended

_is_ready = attrgetter("ready")


@dataclass(slots=True)
class ActionRegistry:
    """Unanswered actions, their deadlines, and the members of each batch."""

    cluster: ClusterState
    actions: dict[str, ActionState] = field(default_factory=dict)
    """Every unanswered action."""
    _deadlines: Deadlines = field(default_factory=Deadlines)
    _grant_deadlines: Deadlines = field(default_factory=Deadlines)
    """Of actions that must be granted until then (`Request.until_granted`)."""
    overdue: bool = False
    """Deadlines have passed, and `expire` has left their actions for the next turn."""
    _members: dict[str, dict[str, None]] = field(default_factory=dict)
    """Batch -> its unanswered actions by arrival."""

    def add(self, request: Request) -> ActionState:
        """Add a new action. The caller queues it, or answers it."""
        action = self.actions[request.id] = ActionState(request, queued_s=request.arrival[0] / 1000)
        if request.batch:
            self._members.setdefault(request.batch, {})[request.id] = None
        (self._grant_deadlines if request.until_granted else self._deadlines).push(request.deadline_s, request.id)
        if request.need is not None:
            self.cluster.trajectories.add(request.need.trajectory, request.id)
        return action

    def has_members(self, batch: str) -> bool:
        """Return whether the batch has unanswered actions."""
        return batch in self._members

    def members(self, batch: str) -> list[str]:
        """Unanswered actions of a batch, by arrival."""
        return list(self._members.get(batch, ()))

    def cancel(self, now: float, action_ids: Iterable[str], reason: str, ended: EndedAs = "cancelled") -> list[Command]:
        """Cancel actions. A queued one is answered; a granted one is revoked, and answered when its node confirms."""
        commands: list[Command] = []
        for action_id in action_ids:
            action = self.actions.get(action_id)
            if action is None or action.state == "cancelling":
                continue
            if action.state == "queued":
                commands.append(self.answer_queued(now, action, ended, reason))
            else:
                self.cluster.leave_queue(action)
                action.pause("cancelling", now)
                action.cancel_as, action.cancel_reason = ended, reason
                commands.append(Revoke(action_id, action.node, action.attempt))
        return commands

    def expire(self, now: float, most: int) -> list[Command]:
        """Cancel the actions whose deadline has passed, at most `most`.

        One that waits after a failure of the external service that it calls ends as this failure.
        """
        commands: list[Command] = []
        for action_id in islice(self._deadlines.due(now), most):
            action = self.actions.get(action_id)
            if action is None or action.state == "cancelling":
                continue
            reason, ended = why_it_waited(self.cluster, action), _end_of_late(action)
            if action.state == "queued":
                nodes = self.cluster.nodes.of(self.cluster.queues.pool(action.work.pool))
                self._await_restore(action, [node.name for node in nodes])
            commands += self.cancel(now, [action_id], reason, ended)
        self.overdue = self._deadlines.is_due(now) or self.next_grant_deadline_s <= now
        return commands

    def _await_restore(self, action: ActionState, nodes: Iterable[str]) -> None:
        """Note the expected end of a restore of its model service on these nodes, unless its attempt has named one."""
        if action.work.service and not action.ready_s:
            action.ready_s = self.cluster.nodes.restores.ready_s(action.work.service, nodes)

    def due_for_grant(self, now: float, most: int) -> list[ActionState]:
        """Remove the deadlines of the actions that were to be granted by now and still wait; return these, at most
        `most`. The caller grants or answers them.
        """
        due: list[ActionState] = []
        while len(due) < most and self.next_grant_deadline_s <= now:
            due.append(self.actions[next(self._grant_deadlines.due(now))])
        return due

    @property
    def next_grant_deadline_s(self) -> float:
        """Earliest deadline of an action that waits and must be granted until then; infinity if there is none, or no
        node of its pool has sent an inventory: a former leader may have granted it. O(nodes of that pool), amortised.
        """
        while (first := self._grant_deadlines.first()) is not None:
            action = self.actions[first[1]]
            if action.state == "queued":
                return first[0] if self.is_served(action) else math.inf
            self._grant_deadlines.drop(first[1])
        return math.inf

    def is_served(self, action: ActionState) -> bool:
        """Return whether a node of its pool has sent an inventory to this leader."""
        return any(map(_is_ready, self.cluster.nodes.of(self.cluster.queues.pool(action.work.pool))))

    def answer_queued(self, now: float, action: ActionState, ended: EndedAs, reason: str) -> AnswerAction:
        """Remove an action from its queue and answer it."""
        self.cluster.queues.remove(action)
        return self.answer(now, action, ended, reason)

    def answer_cancelled(self, now: float, action: ActionState, end: Ended | None = None) -> AnswerAction:
        """Answer a cancelled action whose attempt has ended."""
        reason = action.cancel_reason
        if end is not None and not end.result.restore_s:  # it was revoked before its node had begun it
            self._await_restore(action, [end.node])
        if end is not None and action.ready_s and action.cancel_as == "expired":
            reason = f"its deadline came while {action.work.service!r} was not resident yet on {end.node}"
        return self.answer(now, action, action.cancel_as, reason, end)

    def answer(
        self, now: float, action: ActionState, ended: EndedAs, reason: str, end: Ended | None = None
    ) -> AnswerAction:
        """Remove an action that is neither queued nor on a node, and compose its answer. `end`: of its last attempt.

        The next action of its trajectory no longer waits behind it.
        """
        queue_s, execution_s, restore_s = action.spent(now, end)
        parked_s, _ = action.paused(now)
        self._remove(action)
        return AnswerAction(
            action.request.id,
            ended,
            reason,
            tuple(action.acts),
            queue_s,
            execution_s,
            action.usage,
            parked_s,
            restore_s,
            action.retry_in_s(now) if ended == "expired" else 0.0,
        )

    def withdraw(self, action_id: str) -> bool:
        """Remove an action as if it had never come: its units are free, and what its grant implied is undone."""
        action = self.actions.get(action_id)
        if action is None:
            return False
        if action.state == "queued":
            self.cluster.queues.remove(action)
        else:
            node, resource = self.cluster.nodes.present.get(action.node), action.resource
            if action.allocated and node is not None and resource in action.units:
                node.rearrange(resource, {action_id: action.units[resource]}, {})
                action.units = {name: count for name, count in action.units.items() if name != resource}
            self.cluster.release(action)
        self._remove(action)
        return True

    def _remove(self, action: ActionState) -> None:
        action.move("finished")
        request = action.request
        del self.actions[request.id]
        (self._grant_deadlines if request.until_granted else self._deadlines).drop(request.id)
        if request.batch:
            members = self._members[request.batch]
            del members[request.id]
            if not members:
                del self._members[request.batch]
        if request.need is not None:
            following = self.cluster.trajectories.remove(request.need.trajectory, request.id)
            if self.cluster.trajectories.end_of(request.need) is not None:
                return  # the later ones stay behind until each is answered
            if following is not None and self.actions[following].state == "queued":
                # It waited behind this one. (If a former leader died while it wrote this answer, it may be granted
                # already.)
                self.cluster.queues.remove(self.actions[following])
                self.cluster.queues.enqueue(self.actions[following])

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        on_nodes = {name for held in self.cluster.granted.values() for name in held}
        queued = self.cluster.queues.queued
        resuming = {name for name, action in queued.items() if action.parked}
        assert on_nodes & set(queued) == resuming, "on a node and in a queue, and not parked"
        assert all(queued[name].state == "resuming" for name in resuming), "parked and queued, and not resuming"
        requested = [one for one in self.actions.values() if one.parked and (one.asked_to_park or one.asked_to_resume)]
        assert not requested, "a park and the request to continue after it have ended together"
        assert on_nodes | set(queued) == set(self.actions), "neither on a node nor in a queue"
        batches = {action.request.batch for action in self.actions.values()}
        assert self._members.keys() == batches - {""}, "batches of unanswered actions"


def _end_of_late(action: ActionState) -> EndedAs:
    return "upstream-failed" if upstream_failure(action) else "expired"
