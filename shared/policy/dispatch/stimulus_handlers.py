"""Handlers of stimuli: the consequences of each, before a scheduling round.

Each handler returns commands, after which a scheduling round must follow. It returns None if there is no command and
no grant has become possible or impossible. `stimuli` describes the stimuli.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shared.policy.dispatch import quota_stimuli as of
from shared.policy.dispatch import stimuli
from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.attempt_handler import AttemptHandler
from shared.policy.dispatch.cancellations import Cancellations
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.environment_handler import EnvironmentHandler
from shared.policy.dispatch.environment_placements import Placement
from shared.policy.dispatch.local_stimuli import ActionWithdrawn
from shared.policy.dispatch.node_handler import NodeHandler
from shared.policy.dispatch.parking import ParkingHandler
from shared.policy.dispatch.quota_amounts import estimate_amounts
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.start_predictor import StartPredictor
from shared.policy.dispatch.stimuli import Stimulus
from shared.policy.dispatch.stuck import refusal, set_aside_stuck
from shared.policy.model.formulation import Command
from shared.policy.resources.ledger import Node
from shared.policy.resources.quota_changes import pause_refill
from shared.policy.resources.quota_feedback import quota_changed, restore_brake
from shared.policy.resources.quota_refusals import closed_until_s, why_never
from shared.policy.resources.resource import Specs

Handler = Callable[[float, Any], list[Command] | None]

POOL_BUSY: Final = "it would start after its deadline: the pool is busy"
CALLER_STAYS_S: Final = 1.0
"""Seconds for which a caller waits on after its deadline."""
QUOTAS_LATE: Final = "its quotas cannot give what it needs before its deadline"


@dataclass(slots=True)
class StimulusHandlers:
    """One handler for each type of stimulus."""

    config: DispatchConfig
    specs: Specs
    cluster: ClusterState
    registry: ActionRegistry
    late: dict[str, ActionState] = field(default_factory=dict)
    """New actions that are predicted to start too late; they are rejected if the next round does not grant them."""
    cancellations: Cancellations = field(init=False)
    _environments: EnvironmentHandler = field(init=False)
    _attempts: AttemptHandler = field(init=False)
    _nodes: NodeHandler = field(init=False)
    _parking: ParkingHandler = field(init=False)
    _window_s: float = 0.0

    def __post_init__(self) -> None:
        cluster, registry = self.cluster, self.registry
        self.cancellations = Cancellations(cluster, registry, self.config.most_ended)
        self._environments = EnvironmentHandler(cluster, self.cancellations)
        self._attempts = AttemptHandler(cluster, registry, self._environments, self.config.max_attempts)
        self._parking = ParkingHandler(cluster, registry)
        self._nodes = NodeHandler(cluster, registry, self._attempts, self._environments, self._parking)

    def table(self) -> dict[type[Stimulus], Handler]:
        """Return the handlers by type of stimulus."""
        return {
            stimuli.RequestsSubmitted: self._requests_submitted,
            stimuli.ActionRestored: self._action_restored,
            stimuli.ActionCancelled: self._action_cancelled,
            ActionWithdrawn: self._action_withdrawn,
            stimuli.BatchCancelled: self._batch_cancelled,
            stimuli.AttemptStarted: self._attempt_started,
            stimuli.AttemptsEnded: self._attempts_ended,
            stimuli.ParkRequested: self._park_requested,
            stimuli.AttemptParked: self._attempt_parked,
            stimuli.ResumeRequested: self._resume_requested,
            stimuli.PriorityChanged: self._priority_changed,
            stimuli.TrajectoryClosed: self._trajectory_closed,
            stimuli.TrajectoryRestored: self._trajectory_restored,
            stimuli.PlacementRestored: self._placement_restored,
            stimuli.CreationReported: self._creation_reported,
            stimuli.EnvironmentEndReported: self._environment_end_reported,
            stimuli.ImagesExpected: self._images_expected,
            stimuli.NodeJoined: self._node_joined,
            stimuli.NodeSeen: self._node_seen,
            stimuli.NodeLost: self._node_lost,
            stimuli.SilenceIgnored: self._silence_ignored,
            stimuli.InventoryReported: self._inventory_reported,
            stimuli.ImagesReported: self._images_reported,
            ServicesReported: self._services_reported,
            of.QuotaSet: self._quota_set,
            of.HoldRestored: self._hold_restored,
            of.LevelRestored: self._level_restored,
            of.BrakeRestored: self._brake_restored,
            of.AmountRestored: lambda _, known: self.cluster.estimates.restore(known.key, known.estimate),
            of.StoreStalled: lambda now, stall: pause_refill(self.cluster.quotas, now - stall.lasted_s, now),
            stimuli.TargetReceived: self._target_received,
            stimuli.PlannerChecked: self._planner_checked,
            stimuli.WeightsReceived: self._weights_received,
            stimuli.EstimateReceived: self._estimate_received,
            stimuli.FirstArrivalRestored: self._first_arrival_restored,
            stimuli.BatchEndReported: self._batch_ended,
            stimuli.TurnStarted: self._turn_started,
            stimuli.TickPassed: self._tick_passed,
        }

    # ---- requests ----------------------------------------------------------------------------------------------

    def _requests_submitted(self, now: float, new: stimuli.RequestsSubmitted) -> list[Command]:
        commands: list[Command] = []
        starts = StartPredictor(self.cluster, now)
        for request in new.requests:
            if request.id in self.registry.actions:
                continue
            action = self.registry.add(request)
            if (reason := self.cluster.trajectories.end_of(request.need)) is not None:
                commands.append(self.registry.answer(now, action, "environment-lost", reason))
                continue
            if request.start_by_s is not None and not starts.in_time(action, request.start_by_s):
                self.late[request.id] = action
            estimate_amounts(self.cluster, action)
            self.cluster.queues.enqueue(action)
            can_have = set_aside_stuck(self.cluster, action)
            self.cancellations.submitted(request)
            if reason := self._check_new(now, action, can_have=can_have):
                commands.append(self.registry.answer_queued(now, action, "refused", reason))
        return commands

    def _check_new(self, now: float, action: ActionState, *, can_have: bool) -> str:
        """Return why no node or quota can ever serve a new action. Note one whose quotas are refilled too late.
        `can_have`: `set_aside_stuck` has returned it, and refunds would change nothing.
        """
        quotas, amounts, deadline_s = self.cluster.quotas, action.amounts, action.request.deadline_s
        reason = refusal(self.cluster, action)
        if reason or not action.request.until_granted or not self.registry.is_served(action):
            return reason
        if not can_have and (reason := why_never(quotas, amounts, refunded=True)):
            return reason
        if now >= deadline_s or closed_until_s(quotas, amounts, now) > deadline_s:
            self.late[action.request.id] = action
        return ""

    def _end_grant_deadlines(self, now: float) -> list[Command]:
        """Note the waiting actions whose deadline for the grant has passed: the next round is their last. Answer those
        whose caller has certainly gone.
        """
        due = self.registry.due_for_grant(now, self.config.most_ended)
        gone = [action for action in due if now - action.request.deadline_s > CALLER_STAYS_S]
        self.late |= {one.request.id: one for one in due if now - one.request.deadline_s <= CALLER_STAYS_S}
        return [self.registry.answer_queued(now, action, "expired", QUOTAS_LATE) for action in gone]

    def reject_late(self, now: float) -> list[Command]:
        """Answer the new requests that would start too late and still wait."""
        late, self.late = [action for action in self.late.values() if action.state == "queued"], {}
        reasons = [QUOTAS_LATE if action.request.until_granted else POOL_BUSY for action in late]
        answer = self.registry.answer_queued
        return [answer(now, action, "expired", reason) for action, reason in zip(late, reasons, strict=True)]

    def _action_restored(self, now: float, known: stimuli.ActionRestored) -> None:
        action = self.registry.actions.get(known.action)
        if action is None:
            return
        self.cluster.queues.remove(action)
        action.enter(known.stage, known.attempt)
        action.acts = list(known.acts)
        action.queued_s += sum(act.passed_s for act in action.acts)
        estimate_amounts(self.cluster, action)
        self.cluster.queues.enqueue(action)
        if known.node:
            self.cluster.await_node(action, known.node, now)
            action.asked_to_park, action.asked_to_resume = bool(known.wanted), known.wanted == "resumed"

    def _action_cancelled(self, now: float, one: stimuli.ActionCancelled) -> list[Command]:
        return self.registry.cancel(now, [one.action], one.reason)

    def _action_withdrawn(self, _: float, one: ActionWithdrawn) -> list[Command] | None:
        return [] if self.registry.withdraw(one.action) else None

    def _batch_cancelled(self, now: float, one: stimuli.BatchCancelled) -> list[Command]:
        return self.cancellations.cancel_batch(now, one.batch, one.reason)

    # ---- attempts ----------------------------------------------------------------------------------------------

    def _attempt_started(self, now: float, one: stimuli.AttemptStarted) -> None:
        self._attempts.started(now, one.action, one.attempt)

    def _attempts_ended(self, now: float, report: stimuli.AttemptsEnded) -> list[Command]:
        return [command for end in report.ends for command in self._attempts.ended(now, end)]

    def _park_requested(self, now: float, asked: stimuli.ParkRequested) -> list[Command] | None:
        return self._parking.ask(now, asked.action)

    def _attempt_parked(self, now: float, one: stimuli.AttemptParked) -> list[Command] | None:
        return [] if self._parking.parked(now, one.action, one.attempt) else None

    def _resume_requested(self, now: float, asked: stimuli.ResumeRequested) -> list[Command] | None:
        return [] if self._parking.resume(now, asked.action) else None

    # ---- trajectories ------------------------------------------------------------------------------------------

    def _priority_changed(self, _: float, one: stimuli.PriorityChanged) -> list[Command] | None:
        names = self.cluster.trajectories.turns.get(one.trajectory, ())
        moved = [self.cluster.queues.prioritize(self.registry.actions[name], one.priority) for name in names]
        return [] if any(moved) else None

    def _trajectory_closed(self, now: float, one: stimuli.TrajectoryClosed) -> list[Command]:
        return self._environments.close(now, one.trajectory)

    def _trajectory_restored(self, _: float, known: stimuli.TrajectoryRestored) -> None:
        self.cluster.trajectories.end(known.trajectory, known.reason)

    def _placement_restored(self, _: float, known: stimuli.PlacementRestored) -> None:
        closing = known.trajectory in self.cluster.trajectories.ended
        self.cluster.environments.add(known.trajectory, Placement(known.node, known.units, closing=closing))

    def _creation_reported(self, _: float, one: stimuli.CreationReported) -> list[Command] | None:
        known = self.cluster.nodes.incarnation(one.node, one.incarnation)
        return [] if known is not None and self.cluster.environments.created(one.trajectory, one.node) else None

    def _environment_end_reported(self, now: float, one: stimuli.EnvironmentEndReported) -> list[Command] | None:
        environments, known = self.cluster.environments, self.cluster.nodes.incarnation(one.node, one.incarnation)
        if known is None or environments.remove_orphan(one.node, one.trajectory):
            return []
        placement = environments.placements.get(one.trajectory)
        if placement is None or placement.node != one.node:
            return None
        return self._environments.end(now, one.trajectory, one.ended, one.reason)

    def _images_expected(self, now: float, hint: stimuli.ImagesExpected) -> list[Command] | None:
        return self._nodes.pull(now, hint.images, hint.node_class, hint.kind, hint.units) or None

    # ---- nodes -------------------------------------------------------------------------------------------------

    def _node_joined(self, now: float, hello: stimuli.NodeJoined) -> list[Command] | None:
        known_by = hello.node, hello.incarnation, hello.node_class
        node = Node(*known_by, hello.capacity, hello.kinds, self.specs, prefetches=hello.prefetches)
        return self._nodes.joined(now, node)

    def _node_seen(self, now: float, beat: stimuli.NodeSeen) -> None:
        self._nodes.seen(now, beat.node, beat.incarnation)

    def _node_lost(self, now: float, one: stimuli.NodeLost) -> list[Command] | None:
        if one.node not in self.cluster.nodes.present:
            return None
        return self._attempts.lost_with(now, one.node, one.why)

    def _silence_ignored(self, now: float, _: stimuli.SilenceIgnored) -> None:
        self._nodes.all_seen(now)

    def _inventory_reported(self, now: float, report: stimuli.InventoryReported) -> list[Command] | None:
        taken = self._nodes.inventory_taken(now, report.node, report.incarnation, report.held, report.environments)
        if taken is None:
            return None
        return taken + self._end_grant_deadlines(now)

    def _images_reported(self, now: float, report: stimuli.ImagesReported) -> list[Command] | None:
        requeued = self._nodes.images_changed(now, report.node, report.incarnation, set(report.added), report.removed)
        return [] if requeued else None

    def _services_reported(self, now: float, report: ServicesReported) -> list[Command] | None:
        return [] if self._nodes.services_reported(now, report) else None

    # ---- quotas ------------------------------------------------------------------------------------------------

    def _quota_set(self, now: float, quota: of.QuotaSet) -> list[Command]:
        self.cluster.quotas.set(quota.name, quota.limits, now, read=quota.changed_s is None)
        quota_changed(self.cluster.quotas, quota.name, quota.changed_s, now)
        self.cluster.queues.quotas_changed()
        return []

    def _hold_restored(self, now: float, known: of.HoldRestored) -> None:
        if known.hold.key not in self.cluster.quotas.holds:
            self.cluster.quotas.restore(known.hold._replace(serial=0), now)

    def _level_restored(self, now: float, known: of.LevelRestored) -> None:
        self.cluster.quotas.restore_level(known.quota, known.period_s, known.level, now)

    def _brake_restored(self, _: float, known: of.BrakeRestored) -> None:
        restore_brake(self.cluster.quotas, known.quota, known.brake)

    # ---- planner and time --------------------------------------------------------------------------------------

    def _target_received(self, _: float, target: stimuli.TargetReceived) -> list[Command]:
        pool = self.cluster.queues.pool(target.pool)
        pool.target, pool.chunk = target.units, target.chunk
        self.cluster.queues.dirty.add(target.pool)
        return []

    def _planner_checked(self, _: float, planner: stimuli.PlannerChecked) -> list[Command]:
        self.cluster.queues.set_planned(planner.alive)
        return []

    def _weights_received(self, _: float, received: stimuli.WeightsReceived) -> None:
        self.cluster.queues.weigh(received.weights)

    def _estimate_received(self, _: float, estimate: stimuli.EstimateReceived) -> None:
        self.cluster.queues.rekey(estimate.batch, estimate.at_s)

    def _first_arrival_restored(self, _: float, known: stimuli.FirstArrivalRestored) -> None:
        self.cluster.queues.batches.first_arrival(known.batch, known.first_s, list(known.stage_timeouts_s))

    def _batch_ended(self, _: float, one: stimuli.BatchEndReported) -> None:
        self.cluster.queues.batches.ended(one.batch)

    def _turn_started(self, now: float, _: stimuli.TurnStarted) -> list[Command]:
        ended = self._end_grant_deadlines(now)
        return [*self.cancellations.begin_turn(now), *ended, *self.registry.expire(now, self.config.most_ended)]

    def _tick_passed(self, now: float, _: stimuli.TickPassed) -> list[Command]:
        config = self.config
        commands = self._turn_started(now, stimuli.TurnStarted())
        commands += self._nodes.check_silence(now, config.node_lost_s, config.overdue_s)
        commands += self._attempts.recall(now)
        commands += self._attempts.lost_without_report(now, config.node_lost_s)
        commands += self._environments.expire_absent(now, config.placement_lost_s)
        self.cluster.queues.requeue_due(now)
        self.cluster.quotas.forget_full(now)
        self.cluster.quotas.brakes.forget(now)
        if now - self._window_s >= config.linger_s:
            self._window_s = now
            self.cluster.queues.next_window()
        return commands
