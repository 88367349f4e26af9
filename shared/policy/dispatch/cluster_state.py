"""Cluster state: the queues of all pools, and what each action holds on which node.

Law: a request is in exactly one lane (queued), on exactly one node (granted, running, parked, cancelling), on one node
and in one lane of it (resuming), or answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.environment_placements import EnvironmentPlacements, Placement
from shared.policy.dispatch.holds import AttemptHolds
from shared.policy.dispatch.nodes import Nodes
from shared.policy.dispatch.prefetch import Prefetch
from shared.policy.dispatch.queues import Queues
from shared.policy.dispatch.stage_durations import StageDurations
from shared.policy.dispatch.trajectories import TrajectoryTurns
from shared.policy.elastic.scheduling import ElasticRules, KnownWait
from shared.policy.model.quotas import QuotaHold, hold_key
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.ledger import Node
from shared.policy.resources.orphans import Orphan
from shared.policy.resources.quota_estimates import QuotaEstimates
from shared.policy.resources.quotas import Quotas
from shared.policy.resources.resource import Use


@dataclass(slots=True)
class ClusterState:
    """Queues, nodes and grants. Moves actions between queues and nodes; `scheduling_round` decides the grants."""

    nodes: Nodes = field(default_factory=Nodes)
    durations: StageDurations = field(default_factory=StageDurations)
    trajectories: TrajectoryTurns = field(default_factory=TrajectoryTurns)
    environments: EnvironmentPlacements = field(init=False)
    queues: Queues = field(init=False)
    granted: dict[str, dict[str, ActionState]] = field(default_factory=dict)
    """Node -> action -> its state: actions granted there."""
    prefetch: Prefetch = field(init=False)
    elastic: ElasticRules = field(default_factory=ElasticRules)
    elastic_waits: dict[str, dict[str, KnownWait]] = field(default_factory=dict)
    """Node -> elastic action -> what it waits for there."""
    quotas: Quotas = field(default_factory=Quotas)
    estimates: QuotaEstimates = field(default_factory=QuotaEstimates)
    """What actions use of quotas, as learned."""
    holds: AttemptHolds = field(init=False)
    next_wake_s: float = math.inf
    """Next time at which a blocked head's quotas are refilled: then a scheduling round may grant it."""
    newest_serial: int = 0  # of a grant
    swap_wait_s: float = 5.0
    """See `DispatchConfig`."""

    def __post_init__(self) -> None:
        self.prefetch = Prefetch(self.nodes.rankings)
        self.environments = EnvironmentPlacements(self.nodes)
        self.holds = AttemptHolds(self.quotas, self.nodes, self.granted)
        self.queues = Queues(self.durations, self.trajectories, self.environments, shares=self.quotas.shares)

    # ---- grants ------------------------------------------------------------------------------------------------

    def assign(
        self, action: ActionState, node: Node, now: float, *, prefetched: bool = False, adopted: bool = False
    ) -> QuotaHold | None:
        """Assign an action to a node and take its units and quotas. A prefetched one enters the node's queue, and takes
        no units before it starts. `adopted`: the node reports it. Returns the hold of its quotas, if it takes any.
        """
        self._add_grant(action, node, now)
        if not prefetched:
            return self._allocate(action, node, now, adopted=adopted)
        self.prefetch.add(action)
        return None

    def _add_grant(self, action: ActionState, node: Node, now: float) -> None:
        self.newest_serial += 1
        action.node, action.serial, action.granted_s = node.name, self.newest_serial, now
        action.expected_end_s = now + action.expected_s
        self.granted.setdefault(node.name, {})[action.request.id] = action

    def start_prefetched(self, action: ActionState, node: Node, now: float) -> None:
        """Take the units of a prefetched action that its node has started, or will start at once."""
        self.prefetch.remove(action)
        self._allocate(action, node, now)

    def promote(self, now: float) -> None:
        """Take free units for orphans and the first action in a node's queue, because the node starts them by itself.
        Wake the lanes of nodes. Only nodes that have changed since the last call are examined.
        """
        self.nodes.rankings.shorten()
        changed = self.nodes.rankings.changed
        while changed:
            name = changed.popitem()[0]
            self.queues.lanes.wake_node(name)
            self.elastic_waits.pop(name, None)
            if (node := self.nodes.present.get(name)) is None:
                continue
            node.start_orphans()
            while (action := self.prefetch.first(node)) is not None and node.has_free(action.units):
                self.start_prefetched(action, node, now)

    def _allocate(self, action: ActionState, node: Node, now: float, *, adopted: bool = False) -> QuotaHold | None:
        use = Use(action.work.service, now, action.reported, action.expected_s)
        node.take(action.units, action.request.id, use)
        action.reported = ()
        action.allocated, action.expected_end_s = True, now + action.expected_s
        self.prefetch.count_short(action)
        return self.holds.begin(action, node, now, adopted=adopted) if action.work.quotas else None

    # ---- parked attempts: see `parking` --------------------------------------------------------------------------

    def park(self, action: ActionState, now: float) -> None:
        """Free the units of an attempt that its node has parked. It stays on its node."""
        node = self.nodes.present[action.node]
        node.give_back(action.units, action.request.id)
        self.prefetch.uncount_short(action)
        action.parks += 1
        action.between_parks_s = max(0.0, now - (action.started_s or now) - sum(action.paused(now))) / action.parks
        action.allocated = False
        self._credit_unused(action)
        self._set_parked(action, now)

    def _credit_unused(self, action: ActionState) -> None:
        """Take back what its tenant was charged for more than its time until the first park, because each later time is
        charged when it begins. Only in the lane of its node: lanes have virtual times of their own, and the lane of new
        environments counts whole attempts. If it counted first times alone, tenants would begin unequal numbers.
        """
        unused_s = action.charged_s - action.between_parks_s * max(1, action.granted_units)
        if unused_s > 0 and action.lane is not None and action.lane.node == action.node:
            action.lane.queue.credit(action.request.tenant, unused_s, action.charged_since)
        action.charged_s = 0.0

    def _set_parked(self, action: ActionState, now: float) -> None:
        action.parked = True
        self.queues.remove_demand(action)
        if action.state == "running":  # else it is being cancelled
            action.pause("parked", now)

    def wait_to_resume(self, action: ActionState, now: float) -> None:
        """Queue a parked attempt for its units."""
        action.pause("resuming", now)
        self.queues.enqueue_parked(action)

    def resume(self, action: ActionState, node: Node, now: float) -> None:
        """Take the units of a parked attempt again. It has left its queue."""
        action.pause("running", now)
        action.parked = False
        node.take(action.units, action.request.id, action.use(now))
        action.allocated, action.expected_end_s = True, now + action.between_parks_s
        self.prefetch.count_short(action)

    def leave_queue(self, action: ActionState) -> None:
        """Remove a parked attempt from the queue where it waits for its units, if it does."""
        if action.state == "resuming":
            self.queues.remove(action)

    def release(self, action: ActionState, *, settled: bool = False) -> None:
        """Release an action from its node and free its units. `settled`: its quotas are free already."""
        node = self.nodes.present.get(action.node)
        if action.allocated and node is not None:
            node.give_back(action.units, action.request.id)
        if action.work.quotas and not settled:
            self.quotas.settle(action.hold_key)
        self._remove_grant(action)

    def orphan(self, action: ActionState, now: float) -> None:
        """Remove an action from a node that still executes it and has been asked to stop. Its units stay taken until it
        has.
        """
        node = self.nodes.present.get(action.node)
        if (action.allocated or action.prefetched or action.parked) and node is not None:
            node.add_orphan(action.request.id, action.orphan(now))
        self._remove_grant(action)

    def _remove_grant(self, action: ActionState) -> None:
        del self.granted[action.node][action.request.id]
        self.leave_queue(action)
        self.prefetch.uncount_short(action)
        if action.prefetched:
            self.prefetch.remove(action)
        action.node, action.allocated, action.parked = "", False, False
        self.queues.remove_demand(action)

    # ---- grants of a former leader -----------------------------------------------------------------------------

    def await_node(self, action: ActionState, node: str, now: float) -> None:
        """Set an action aside for the node where a former leader granted it. It may run there, so only that node's
        report decides.
        """
        self.queues.dequeue(action)
        action.move("granted")
        action.node, action.granted_s, action.expected_end_s = node, now, now
        self.granted.setdefault(node, {})[action.request.id] = action

    def reconcile(self, now: float, node: Node, action: ActionState | None, action_id: str, held: HeldGrant) -> bool:
        """Adopt what a node holds if it is the current attempt. False: it must be revoked, and its units stay taken
        until then.

        An attempt older than the newest is not adopted. Another attempt may run, and attempt numbers are never reused.
        """
        known = node.orphans.pop(action_id, None)
        if known is not None:  # a node has one attempt of an action: this one, or that one has ended
            node.give_back(known.units, action_id)
            if (known.stage, known.attempt) != (held.stage, held.attempt):
                self.quotas.settle(hold_key(action_id, known.stage, known.attempt))
        if action is not None and action.stage == held.stage and action.attempt <= held.attempt:
            self._adopt(action, node, held, now)
            if action.node == node.name:
                action.attempt = held.attempt
                return True
        units = held.units or (action.request.stages[held.stage].units if action is not None else {})
        units, awaits = ({} if held.queued or held.parked else units), (units if held.queued else {})
        node.take(units, action_id, Use(held.service, now, held.numbers))
        if action is not None:
            self.holds.orphan_reported(action, node, held, now)
        since_s = now if known is None else known.since_s
        node.add_orphan(action_id, Orphan(held.stage, held.attempt, units, 0, since_s, awaits))
        return False

    def _adopt(self, action: ActionState, node: Node, held: HeldGrant, now: float) -> None:
        """Assign an action to the node that reports it, unless it is on another one."""
        if action.parked:
            if held.resuming and action.state == "parked" and action.node == node.name:
                self.wait_to_resume(action, now)
            return
        since_s = now - held.running_s - held.paused_s
        if not action.allocated:
            action.units = held.units or action.units
        if held.parked and action.node in ("", node.name) and not action.allocated:
            self._adopt_parked(action, node, held, since_s, now)
        elif action.state != "queued" and (action.node != node.name or action.allocated):
            return
        elif action.prefetched:
            if not held.queued:
                self.start_prefetched(action, node, since_s)
        else:
            if action.state == "queued":
                self.queues.dequeue(action)
                action.move("granted")
            action.expected_s = self.durations.expect(action, action.granted_units)
            action.attempt, action.parked_s = held.attempt, held.paused_s
            action.reported = held.numbers
            self.assign(action, node, since_s, prefetched=held.queued, adopted=True)
            action.expected_end_s += held.paused_s

    def _adopt_parked(self, action: ActionState, node: Node, held: HeldGrant, since_s: float, now: float) -> None:
        """Assign an action to the node that reports it as parked. All its time without units counts as parked."""
        if action.state == "queued":
            self.queues.dequeue(action)
            action.move("granted")
        action.begins, action.attempt, action.parked_s = False, held.attempt, held.paused_s
        action.expected_s = self.durations.expect(action, action.granted_units)
        action.parks, action.between_parks_s = 1, held.running_s  # the number of earlier parks is not known
        self._add_grant(action, node, since_s)
        if action.work.quotas:
            self.holds.begin(action, node, since_s, adopted=True)
        if action.state == "granted":
            action.move("running")
        self._set_parked(action, now)
        if (held.resuming or action.asked_to_resume) and action.state == "parked":
            self.wait_to_resume(action, now)
        action.asked_to_park = action.asked_to_resume = False

    # ---- nodes and environments --------------------------------------------------------------------------------

    def add_node(self, node: Node) -> None:
        """Add a node. Nothing is granted on it before it is ready."""
        self.holds.node_joins(node)
        self.nodes.add(node)
        self.environments.node_back(node.name)

    def remove_node(self, name: str, *, allocated_only: bool = False) -> list[ActionState]:
        """Remove a node. Returns the actions it held in the order of their grants, each released.

        `allocated_only`: keep the actions that wait for a report from a node of this name.
        """
        present = name in self.nodes.present
        self.nodes.remove(name)
        held = self.granted.get(name, {}).values()
        actions = [
            action for action in held if action.allocated or action.prefetched or action.parked or not allocated_only
        ]
        actions.sort(key=lambda action: action.serial)
        for action in actions:
            self.release(action)
        if present:
            self.holds.node_gone(name)
        if not self.granted.get(name):
            self.granted.pop(name, None)
        self.environments.node_away(name)
        self.queues.nodes_changed()
        return actions

    def begin_environment(self, action: ActionState, node: Node, now: float) -> None:
        """Place the environment that the newest grant begins."""
        need = action.request.need
        assert need is not None, f"{action.request.id} has no trajectory"
        self.environments.place(need, node, self.newest_serial, now)
        self.queues.change_lane(need.trajectory)

    def remove_environment(self, trajectory: str) -> Placement | None:
        """Remove the placement of an ended environment, free its units, and return the placement."""
        placement = self.environments.remove(trajectory)
        self.queues.change_lane(trajectory)
        return placement

    # ---- invariants --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self.nodes.check()
        self.trajectories.check()
        self.environments.check()
        self.queues.check(action for held in self.granted.values() for action in held.values())
        for node in self.nodes.present.values():
            held = self.granted.get(node.name, {}).values()
            self.prefetch.check(node, held)
            self._check_ledger(node, [action for action in held if action.allocated])
        self.holds.check()

    def _check_ledger(self, node: Node, held: list[ActionState]) -> None:
        assert node.orphans.keys().isdisjoint(action.request.id for action in held), f"{node.name}: one action twice"
        taken = [*(action.units for action in held), *(orphan.units for orphan in node.orphans.values())]
        for resource in node.resources:
            used = sum(units.get(resource, 0) for units in taken) + self.environments.held(node.name, resource)
            used -= node.resources[resource].shared
            assert used == node.taken(resource), f"{node.name}: ledger of {resource}"
            assert used <= node.capacity.get(resource, 0), f"{node.name}: more {resource} granted than exist"
