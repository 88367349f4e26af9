"""Cluster state: the queues of all pools, and what each action holds on which node.

Law: a request is in exactly one lane (queued), on exactly one node (granted, running, cancelling), or answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isclose

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.elastic_units import ElasticGrants
from shared.policy.dispatch.environment_placements import EnvironmentPlacements
from shared.policy.dispatch.prefetch import RECALL_S, Prefetch
from shared.policy.elastic.scheduling import Scalable
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.ledger import Node, Orphan, place
from shared.policy.resources.pools import Pool

MOST_GONE = 1024
"""Most lost nodes that are remembered."""


@dataclass(slots=True)
class ClusterState(EnvironmentPlacements):
    """State of queues and nodes; `scheduling_round` decides the grants."""

    granted: dict[str, dict[str, ActionState]] = field(default_factory=dict)
    """Node -> action -> its state: actions granted there."""
    ahead: Prefetch = field(default_factory=Prefetch)
    """Prefetched actions: granted, and waiting in their nodes' queues."""
    elastic: ElasticGrants = field(default_factory=ElasticGrants)
    newest_serial: int = 0
    """Serial of the newest grant."""
    _gone: dict[str, Node] = field(default_factory=dict)
    """Lost nodes with inventory requests unanswered; the newest incarnation of each name."""

    def enqueue(self, action: ActionState) -> None:
        """As `Queues.enqueue`; computes the durations of an elastic action, so that scheduling rounds need not."""
        EnvironmentPlacements.enqueue(self, action)
        self.scaled(action)

    def scaled(self, action: ActionState) -> Scalable | None:
        """Durations of its stage on each amount it may have; None if it is not elastic or its duration is unknown."""
        if not action.scales:
            return None
        if action.scalable is not None and action.work.duration_s is not None:
            return action.scalable  # the declared duration does not change
        single_s = self.single(action)
        return None if single_s is None else self.elastic.scalable(action, single_s)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def assign(self, action: ActionState, node: Node, now: float) -> None:
        """Assign an action to a node and take its units."""
        self._onto(action, node, now)
        self._book(action, node, now)

    def stand(self, action: ActionState, node: Node, now: float) -> None:
        """Add an action to a node's queue. It takes no units before it starts."""
        self._onto(action, node, now)
        self.ahead.join(action)

    def started_ahead(self, action: ActionState, node: Node, now: float) -> None:
        """Take the units of a prefetched action that its node has started, or will start at once."""
        self.ahead.leave(action)
        self._book(action, node, now)

    def promote(self, now: float) -> None:
        """If units are free, take them for the first action in the node's queue: the node has started it by itself."""
        for name in list(self.ahead.lines):
            node = self.nodes[name]
            while (action := self.ahead.first(node)) is not None and node.holds(action.units):
                self.started_ahead(action, node, now)

    def stale_prefetched(self, now: float) -> Iterator[ActionState]:
        """Prefetched actions to recall: they have waited longer than `RECALL_S`, and either another node can start them
        now or only long work is ahead of them.

        Work that was expected to be short and runs overdue no longer counts as short. A recalled action returns to the
        queue, where order and deadlines apply.
        """
        for name in list(self.ahead.short):
            for action in self.granted.get(name, {}).values():
                if action.short and now - action.expected_end_s > RECALL_S:
                    self.ahead.lasts(action)
        for action in self.ahead.stale_prefetched(now):
            work, pool = action.work, self.pool(action.work.pool)
            elsewhere = place(self.nodes_of(pool), action.request.id, work.kind, action.units, pool.resource)
            if elsewhere is not None or action.node not in self.ahead.short:
                yield action

    def _onto(self, action: ActionState, node: Node, now: float) -> None:
        self.newest_serial += 1
        action.node, action.serial, action.granted_s = node.name, self.newest_serial, now
        action.expected_end_s = now + action.expected_s
        self.granted.setdefault(node.name, {})[action.request.id] = action

    def _book(self, action: ActionState, node: Node, now: float) -> None:
        node.take(action.units)
        action.booked, action.expected_end_s = True, now + action.expected_s
        self.ahead.booked(action)

    def adopt(self, action: ActionState, node: Node, now: float, *, waits: bool = False) -> None:
        """Assign a queued action to the node that reports it (granted under a former leader)."""
        self.unqueue(action)
        action.move("granted")
        if action.scales:
            action.expected_s = self.expect(action, action.granted_units)
        (self.stand if waits else self.assign)(action, node, now)

    def await_node(self, action: ActionState, node: str, now: float) -> None:
        """Set an action aside for the node where a former leader granted it, as the store says. It may run there, so
        only that node's report decides.
        """
        self.unqueue(action)
        action.move("granted")
        action.node, action.granted_s, action.expected_end_s = node, now, now
        self.granted.setdefault(node, {})[action.request.id] = action

    def release(self, action: ActionState) -> None:
        """Release an action from its node and free its units."""
        node = self.nodes.get(action.node)
        if action.booked and node is not None:
            node.give_back(action.units)
        self._off_node(action)

    def orphan(self, action: ActionState, now: float) -> None:
        """Remove an action from a node that still executes it and has been asked to stop. Its units stay taken until it
        has.
        """
        node = self.nodes.get(action.node)
        if (action.booked or action.ahead) and node is not None:
            units = action.units if action.booked else {}
            node.orphans[action.request.id] = Orphan(action.stage, action.attempt, units, action.serial, now)
        self._off_node(action)

    def reconcile(self, now: float, node: Node, action: ActionState | None, action_id: str, holding: HeldGrant) -> bool:
        """Adopt what a node holds if it is the current attempt. False: it must be revoked, and its units stay taken
        until then.

        An attempt older than the newest is not adopted. Another attempt may run, and attempt numbers are never reused.
        """
        if action is not None and action.stage == holding.stage and action.attempt <= holding.attempt:
            since_s = now - holding.running_s
            if not action.booked:
                action.units = holding.units or action.units
            if action.state == "queued":
                self.adopt(action, node, since_s, waits=holding.waits)
            elif action.ahead and action.node == node.name and not holding.waits:
                self.started_ahead(action, node, since_s)
            elif action.node == node.name and not action.booked and not action.ahead:
                action.expected_s = self.expect(action, action.granted_units)
                (self.stand if holding.waits else self.assign)(action, node, since_s)
            if action.node == node.name:
                action.attempt = holding.attempt
                return True
        units = holding.units or (action.request.stages[holding.stage].units if action is not None else {})
        if holding.waits:
            units = {}
        known = node.orphans.pop(action_id, None)
        if known is not None:
            node.give_back(known.units)
        node.take(units)
        node.orphans[action_id] = Orphan(
            holding.stage, holding.attempt, units, 0, now if known is None else known.since_s
        )
        return False

    def is_overdue(self, node: Node, now: float, overdue_s: float) -> bool:
        """Return whether to ask the node for another inventory; at most once in `overdue_s`."""
        if now - node.asked_s < overdue_s:
            return False
        return (
            bool(node.asked)
            or any(now - orphan.since_s > overdue_s for orphan in node.orphans.values())
            or any(
                now - action.granted_s > action.work.timeout_s + overdue_s
                for action in self.granted.get(node.name, {}).values()
            )
        )

    def _off_node(self, action: ActionState) -> None:
        del self.granted[action.node][action.request.id]
        self.ahead.lasts(action)
        if action.ahead:
            self.ahead.leave(action)
        action.node, action.booked = "", False
        self._left(action)

    def add_node(self, node: Node) -> None:
        """Add a node. Nothing is granted on it before it is ready."""
        gone = self._gone.pop(node.name, None)
        if gone is not None:
            node.remember(gone)
        self.nodes[node.name] = node
        self._by_class.clear()
        self.node_back(node.name)

    def drop_node(self, name: str, *, booked_only: bool = False) -> list[ActionState]:
        """Remove a node. Returns the actions it held in the order of their grants, each released.

        `booked_only`: keep the actions that wait for a report from a node of this name.
        """
        node = self.nodes.pop(name, None)
        if node is not None and node.asked:
            self._gone[name] = node
            while len(self._gone) > MOST_GONE:
                del self._gone[next(iter(self._gone))]
        known = self.granted.get(name, {}).values()
        actions = [action for action in known if action.booked or action.ahead or not booked_only]
        actions.sort(key=lambda action: action.serial)
        for action in actions:
            self.release(action)
        if not self.granted.get(name):
            self.granted.pop(name, None)
        self.node_away(name)
        self.nodes_changed()
        return actions

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self.trajectories.check()
        for pool in self.pools.values():
            mine = {name for name, action in self.queued.items() if action.work.pool == pool.name}
            for lane in pool.all_lanes():
                lane.queue.check()
                waiting = {*lane.queue, *lane.parked, *lane.behind, *lane.postponed}
                assert len(waiting) == lane.waiting, f"{pool.name} {lane.name}: in its queue and aside"
                assert waiting == {name for name in mine if self.queued[name].lane is lane}, f"{lane.name}: its queue"
                assert lane is pool or waiting, f"{pool.name}: the lane {lane.name} is empty"
                mine -= waiting
            assert not mine, f"{pool.name}: its lanes hold what waits for it, not {mine}"
            self._check_demand(pool)
        for node in self.nodes.values():
            actions = [action for action in self.granted.get(node.name, {}).values() if action.booked]
            self._check_line(node, actions)
            assert node.orphans.keys().isdisjoint(action.request.id for action in actions), (
                f"{node.name}: one action twice"
            )
            booked = [
                *(action.units for action in actions),
                *(orphan.units for orphan in node.orphans.values()),
            ]
            for resource in {*node.capacity, *node.used}:
                used = sum(units.get(resource, 0) for units in booked) + self.held_by_environments(node.name, resource)
                assert used == node.used.get(resource, 0), f"{node.name}: ledger of {resource}"
                assert used <= node.capacity.get(resource, 0), f"{node.name}: more {resource} granted than exist"

    def _check_demand(self, pool: Pool) -> None:
        queued = [action for action in self.queued.values() if action.work.pool == pool.name]
        queued_s = sum(action.expected_s * action.pool_units for action in queued)
        assert isclose(queued_s, pool.queued_s, abs_tol=1e-6), f"{pool.name}: unit-seconds that wait"
        held = [
            action for actions in self.granted.values() for action in actions.values() if action.work.pool == pool.name
        ]
        wanted = [(action.wanted_units, action.request.batch) for action in [*queued, *held]]
        assert sum(units for units, _ in wanted) == pool.demand.units, f"{pool.name}: units wanted"
        outside = sum(units for units, batch in wanted if not batch)
        assert outside == pool.outside.units, f"{pool.name}: units wanted outside batches"

    def _check_line(self, node: Node, booked: list[ActionState]) -> None:
        line = self.ahead.lines.get(node.name)
        stands = {name for name, action in self.granted.get(node.name, {}).items() if action.ahead}
        assert stands == (line.actions.keys() if line is not None else set()), f"{node.name}: its line"
        short = sum(action.pool_units for action in booked if action.short)
        assert short == self.ahead.short.get(node.name, 0), f"{node.name}: units of short work"
        first = self.ahead.first(node)
        assert first is None or not node.holds(first.units), f"{node.name}: units are free, and its line waits"
