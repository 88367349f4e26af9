"""Consequences of ended attempts: the next stage, another attempt, or an answer.

Laws:
  - a verdict (`ok`, `timeout`) on the current stage counts, whichever attempt brings it. Losses, rejections and
    cancellations count only for the current attempt;
  - a verdict is never invented: infrastructure failures have their own names;
  - work that is not repeatable is executed once at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.environment_handler import EnvironmentHandler
from shared.policy.dispatch.node_choice import stale_prefetched
from shared.policy.dispatch.quota_amounts import estimate_amounts, learn_amounts
from shared.policy.model.formulation import Advance, Command, EndedAs, EnvironmentNeed, Revoke
from shared.policy.model.quotas import hold_key
from shared.policy.model.reports import Ended
from shared.policy.model.results import LEAST_POSTPONED_S, added
from shared.policy.resources.quota_feedback import apply_feedback

MOST_POSTPONED_S = 600.0
"""Longest delay that a node may ask for."""


@dataclass(slots=True)
class AttemptHandler:
    """Applies ends, losses and recalls of attempts."""

    cluster: ClusterState
    registry: ActionRegistry
    environments: EnvironmentHandler
    max_attempts: int

    def started(self, now: float, action_id: str, attempt: int) -> None:
        """An attempt has started to execute."""
        action = self.registry.actions.get(action_id)
        if action is not None and action.attempt == attempt and action.state == "granted":
            action.move("running")
            action.started_s = action.started_s or now
            if action.work.service and (node := self.cluster.nodes.present.get(action.node)) is not None:
                node.resources[action.resource].executes(action_id, now)

    # ---- ends reported by nodes --------------------------------------------------------------------------------

    def ended(self, now: float, end: Ended) -> list[Command]:
        """Handle the end of an attempt."""
        result = end.result
        if result.feedback:
            key = hold_key(end.action, end.stage, end.attempt)
            apply_feedback(self.cluster.quotas, key, result.feedback, now)
        node = self.cluster.nodes.present.get(end.node)
        was_orphan = (
            node is not None
            and bool(node.orphans)
            and self.cluster.holds.orphan_ended(node, end.action, end.stage, end.attempt, result, now)
        )
        action = self.registry.actions.get(end.action)
        if action is None or end.stage != action.stage:
            return []
        is_verdict = result.is_verdict
        if is_verdict and end.units and not action.allocated:
            action.units = end.units
        current = action.state != "queued" and end.attempt == action.attempt and end.node == action.node
        need = action.request.need
        commands = self._apply_to_environment(now, need, end) if current and need is not None else []
        if current and 0.0 < result.ready_in_s < math.inf:
            action.ready_s = now + result.ready_in_s
        if current or was_orphan or is_verdict:
            action.usage = added(action.usage, result.usage)
            if 0.0 < result.restore_s < math.inf:
                action.restore_s += result.restore_s
        if not current and not is_verdict:
            return commands
        commands += self._remove(now, action, end, current=current)
        commands += self._scored(now, action, end) if is_verdict else self._unscored(now, action, end)
        return commands

    def _apply_to_environment(self, now: float, need: EnvironmentNeed, end: Ended) -> list[Command]:
        if not end.result.environment_exists:
            return self.environments.not_created(now, need, end)
        self.cluster.environments.created(need.trajectory, end.node)
        return []

    def _remove(self, now: float, action: ActionState, end: Ended, *, current: bool) -> list[Command]:
        """Remove an action from its node or queue. If another attempt is granted, it is revoked."""
        if current:
            if action.work.quotas:
                used, unexecuted = end.result.quotas_used, end.result.unexecuted
                if used and not unexecuted:  # its zeros are no example of what calls use
                    learn_amounts(self.cluster, action, used)
                not_begun_s = None if end.result.environment_exists else now
                self.cluster.quotas.settle(
                    action.hold_key, not_begun_s=not_begun_s, used=used, unexecuted=unexecuted, now=now
                )
            self.cluster.release(action, settled=True)
        elif action.state == "queued":
            self.cluster.queues.remove(action)
        else:
            revoke = Revoke(end.action, action.node, action.attempt)
            self.cluster.orphan(action, now)
            return [revoke]
        return []

    def _scored(self, now: float, action: ActionState, end: Ended) -> list[Command]:
        """The stage has a verdict: continue with the next stage, or answer (early exit of a failed stage)."""
        if not action.begins:  # else the time includes the creation of the environment
            self.cluster.durations.learn(action, end.execution_s)
        action.scored(now, end)
        if action.is_last or end.result.status == "timeout" or end.result.passed is False:
            ended: EndedAs = "timeout" if end.result.status == "timeout" else "ok"
            return [self.registry.answer(now, action, ended, end.result.reason)]
        if action.state == "cancelling":
            return [self.registry.answer_cancelled(now, action)]
        action.enter(action.stage + 1, attempt=0)
        estimate_amounts(self.cluster, action)
        if action.state != "queued":
            action.move("queued")
        self.cluster.queues.enqueue(action)
        return [Advance(action.request.id, action.stage, tuple(action.acts))]

    def _unscored(self, now: float, action: ActionState, end: Ended) -> list[Command]:
        answer, need = self.registry.answer, action.request.need
        if action.state == "cancelling":
            return [self.registry.answer_cancelled(now, action, end)]
        if end.result.status == "cancelled":  # a former leader has asked for it
            late = action.request.deadline_s <= now
            return [answer(now, action, "expired" if late else "cancelled", end.result.reason, end)]
        if end.result.status == "environment-lost" and need is not None:
            lost = self.environments.end(now, need.trajectory, end.result.environment_ended, end.result.reason)
            return [*lost, answer(now, action, "environment-lost", end.result.reason, end)]
        if end.result.status == "refused":
            return [answer(now, action, "refused", end.result.reason, end)]
        if end.result.status == "upstream-failed":
            return [answer(now, action, "upstream-failed", end.result.reason, end)]
        if end.result.status == "postponed" and (need is None or not end.result.environment_exists):
            return self._postponed(now, action, end)
        return self.lost(now, action, "sandbox-lost", end.result.reason, end)

    def _postponed(self, now: float, action: ActionState, end: Ended) -> list[Command]:
        """Its environment cannot be created yet, or the service that it calls is not available. That is no failed
        attempt, so only the deadline bounds the retries here. Its quotas were settled: the next attempt takes them
        again.
        """
        if (reason := self.cluster.trajectories.end_of(action.request.need)) is not None:
            return [self.registry.answer(now, action, "environment-lost", reason, end)]
        action.move("queued")
        action.recalls += 1
        action.postponed, action.failed_calls = end.result.reason, end.result.failed_calls
        self.cluster.queues.enqueue(action)
        until_s = now + min(max(end.result.retry_in_s, LEAST_POSTPONED_S), MOST_POSTPONED_S)
        self.cluster.queues.postpone(action, until_s)
        return []

    # ---- losses and recalls ------------------------------------------------------------------------------------

    def lost(
        self, now: float, action: ActionState, ended: EndedAs, why: str, end: Ended | None = None
    ) -> list[Command]:
        """An attempt is lost and its units are free: retry, or answer with what is known. Its node may ask for a pause
        before the retry.
        """
        if action.state == "cancelling":
            return [self.registry.answer_cancelled(now, action, end)]
        attempts, begun = action.attempt - action.recalls, end is None or end.result.environment_exists
        if (reason := self.cluster.trajectories.end_of(action.request.need)) is not None:
            return [self.registry.answer(now, action, "environment-lost", reason, end)]
        if not action.work.repeatable and begun:
            return [self.registry.answer(now, action, "unknown-outcome", f"{why}; it is not repeatable", end)]
        if attempts >= self.max_attempts:
            return [self.registry.answer(now, action, ended, f"{why}; {attempts} attempts", end)]
        if action.failed_calls is not None:  # the newest attempt did not end by the failure of an external service
            action.postponed = ""
        action.move("queued")
        self.cluster.queues.enqueue(action)
        if end is not None and end.result.retry_in_s > 0.0 and action.request.need is None:
            action.postponed = end.result.reason
            self.cluster.queues.postpone(action, now + min(end.result.retry_in_s, MOST_POSTPONED_S))
        return []

    def lost_with(self, now: float, name: str, why: str, *, allocated_only: bool = False) -> list[Command]:
        """Remove a node with the attempts it held. Nothing is granted yet, because more nodes may be lost.

        In one turn, 10 us for each attempt: 1 s for 100,000 on the nodes that are lost together.
        """
        commands: list[Command] = []
        for action in self.cluster.remove_node(name, allocated_only=allocated_only):
            commands += self.lost(now, action, "node-lost", f"{name}: {why}")
        return commands

    def lost_without_report(self, now: float, grace_s: float) -> list[Command]:
        """Give up the attempts of a former leader whose node has not come back within `grace_s`. In one turn, 17 us for
        each: 1.7 s for 100,000.
        """
        commands: list[Command] = []
        self.cluster.holds.expire(now, grace_s)
        for name in sorted(self.cluster.granted.keys() - self.cluster.nodes.present.keys()):
            for action in list(self.cluster.granted[name].values()):
                if now - action.granted_s > grace_s:
                    self.cluster.release(action)
                    commands += self.lost(now, action, "node-lost", f"{name} has not come back")
        return commands

    def recall(self, now: float) -> list[Command]:
        """Recall prefetched actions that have waited too long; they return to the queue."""
        commands: list[Command] = []
        for action in stale_prefetched(self.cluster, now):
            commands.append(Revoke(action.request.id, action.node, action.attempt, recall=True))
            self.cluster.orphan(action, now)
            action.move("queued")
            action.recalls += 1
            self.cluster.queues.enqueue(action)
        return commands
