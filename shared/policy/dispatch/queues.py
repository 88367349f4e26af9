"""Queues: pools, their lanes, and the nodes that each waiting action could run on."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.trajectories import Trajectories
from shared.policy.order.batches import BatchRegistry
from shared.policy.order.estimates import Durations
from shared.policy.order.lanes import Lane
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Pool


@dataclass(slots=True)
class Queues:
    """Waiting work by pool and lane, and the nodes it waits for."""

    batches: BatchRegistry = field(default_factory=BatchRegistry)
    durations: Durations = field(default_factory=Durations)
    nodes: dict[str, Node] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    trajectories: Trajectories = field(default_factory=Trajectories)
    queued: dict[str, ActionState] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    """Pools whose shares may have to change; only those that the planner scales."""
    planned: bool = True
    """A planner is alive. While none is, targets stay and a zero-queue rule adds to them."""
    _by_class: dict[str, list[Node]] = field(default_factory=dict)
    """Node class -> its nodes by name; valid until the set of nodes changes."""

    def pool(self, name: str) -> Pool:
        """Return the pool of that name; create it on first use."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
        return pool

    def nodes_of(self, pool: Pool, lane: Lane | None = None) -> list[Node]:
        """Nodes that belong to a pool, by name; for a lane bound to one node, that node. Do not change the list."""
        if lane is not None and lane.node:
            bound = self.nodes.get(lane.node)
            return [bound] if bound is not None and bound.node_class == pool.node_class else []
        nodes = self._by_class.get(pool.node_class)
        if nodes is None:
            nodes = [node for _, node in sorted(self.nodes.items()) if node.node_class == pool.node_class]
            self._by_class[pool.node_class] = nodes
        return nodes

    def expect(self, action: ActionState, units: int | None = None) -> float:
        """Seconds its stage is expected to take on this many units of its pool's resource; None: on the fewest.

        The declared duration, else the learned duration of its kind; at most the timeout.
        """
        work = action.work
        if work.elasticity is None or not action.scales:
            if work.duration_s is not None:
                return min(work.timeout_s, work.duration_s)
            return self.durations.expect(action.duration_key, work.timeout_s)
        single_s = self.single(action)
        if single_s is None:
            return self.durations.expect(action.duration_key, work.timeout_s)
        return min(work.timeout_s, work.elasticity.duration(single_s, action.pool_units if units is None else units))

    def expect_at_most(self, action: ActionState) -> float:
        """Seconds that its stage rarely exceeds on the fewest units: the expected duration plus the spread of its
        kind.
        """
        expected_s, work = self.expect(action), action.work
        spread_s = self.durations.spread(action.duration_key) if work.duration_s is None else None
        if spread_s is None:
            return expected_s
        if action.scales and work.elasticity is not None:  # the learned spread is that on one unit
            spread_s = work.elasticity.duration(spread_s, action.pool_units)
        return min(work.timeout_s, expected_s + spread_s)

    def single(self, action: ActionState) -> float | None:
        """Seconds its stage takes on one unit; None if unknown."""
        if action.work.duration_s is not None:
            return action.work.duration_s
        return self.durations.single(action.duration_key)

    def learn(self, action: ActionState, seconds: float) -> None:
        """Record the duration of its stage on the granted units."""
        elasticity = action.work.elasticity
        if action.scales and elasticity is not None:
            seconds = elasticity.single(seconds, action.granted_units)
        self.durations.seen(action.duration_key, seconds)

    # ---- queues ------------------------------------------------------------------------------------------------

    def enqueue(self, action: ActionState) -> None:
        """Queue an action's current stage. It waits behind an earlier unanswered action of its trajectory, if there is
        one.
        """
        action.key = self.batches.key(action.request, self.durations)
        self.requeue(action)

    def requeue(self, action: ActionState) -> None:
        """Queue it with its old key. A new key would use newer estimates and could let other work overtake it."""
        request = action.request
        pool = self.pool(action.work.pool)
        action.units = action.work.units
        action.lane = lane = self._lane_of(pool, action)
        action.expected_s = self.expect(action)
        if request.need is not None and self.trajectories.turns[request.need.trajectory][0] != request.id:
            lane.behind.add(request.id)
        else:
            self._push(lane, action)
        self.batches.waits(request, (pool.name, lane.name, request.tenant))
        self.queued[request.id] = action
        pool.queued_s += action.expected_s * action.pool_units
        pool.note(action.wanted_units, outside=not request.batch)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def _push(self, lane: Lane, action: ActionState) -> None:
        """Add it to a lane's order; an action of a batch with the batch's present T."""
        request = action.request
        if request.batch:
            action.key = self.batches.key(request, self.durations)
        lane.queue.push(request.tenant, action.key, request.id, request.batch)

    def dequeue(self, action: ActionState) -> None:
        """Remove an action from its queue for good (answered, or about to be queued elsewhere)."""
        self.unqueue(action)
        self._left(action)

    def unqueue(self, action: ActionState) -> None:
        """Remove an action from its queue because it is on a node now."""
        request, lane = action.request, action.lane
        assert lane is not None, f"{request.id} waits nowhere"
        pool = self.pool(action.work.pool)
        if not lane.queue.remove(request.tenant, request.id) and lane.postponed.pop(request.id, None) is None:
            (lane.parked if request.id in lane.parked else lane.behind).remove(request.id)
        if lane is not pool and not lane.waiting:
            pool.lanes.pop(lane.name, None)
        pool.queued_s -= action.expected_s * action.pool_units
        if request.batch:
            self.batches.leaves(request, (pool.name, lane.name, request.tenant))
        del self.queued[request.id]

    def park(self, lane: Lane, action: ActionState) -> None:
        """Set aside an action that no node could ever take, until nodes change or its deadline comes."""
        lane.queue.remove(action.request.tenant, action.request.id)
        lane.parked.add(action.request.id)

    def postpone(self, action: ActionState, until_s: float) -> None:
        """Set aside a newly queued action until then, because its node cannot run it earlier."""
        lane = action.lane
        assert lane is not None, f"{action.request.id} waits nowhere"
        if lane.queue.remove(action.request.tenant, action.request.id):
            lane.postponed[action.request.id] = until_s

    def resume(self, now: float, images: Container[str] = ()) -> int:
        """Queue postponed actions again with their old keys: those due by now, and those that need one of these images.
        Returns the number of actions. O(lanes + postponed actions).
        """
        count = 0
        for pool in self.pools.values():
            for lane in pool.all_lanes():
                for action_id, until_s in list(lane.postponed.items()):
                    action = self.queued[action_id]
                    if until_s <= now or (action.request.need is not None and action.request.need.image in images):
                        del lane.postponed[action_id]
                        self._push(lane, action)
                        count += 1
        return count

    def rekey(self, batch: str, at_s: float) -> None:
        """Move a batch to its new expected completion in every queue where its requests wait."""
        for name, lane_name, tenant in self.batches.expected(batch, at_s):
            pool = self.pools.get(name)
            lane = pool if pool is None or lane_name == name else pool.lanes.get(lane_name)
            if lane is not None:  # else the lane is gone, or has only actions set aside
                lane.queue.move(tenant, batch, self.batches.due(batch))

    def move(self, trajectory: str) -> None:
        """Move a trajectory's waiting actions to another lane after its placement has changed."""
        for action_id in self.trajectories.turns.get(trajectory, ()):
            action = self.queued.get(action_id)
            if action is not None:
                self.dequeue(action)
                self.enqueue(action)

    def _lane_of(self, pool: Pool, action: ActionState) -> Lane:
        need = action.request.need
        action.begins = self.trajectories.begins(need)
        if need is None:
            return pool
        return pool.lane(None if action.begins else self.trajectories.placements[need.trajectory].node)

    def _left(self, action: ActionState) -> None:
        pool = self.pool(action.work.pool)
        pool.note(-action.wanted_units, outside=not action.request.batch)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def next_window(self) -> None:
        """Start a new linger window: shares may shrink, and pools without recent demand are deleted."""
        for pool in list(self.pools.values()):
            pool.next_window()
            if pool.target is None and not pool.demand.peak and not any(lane.waiting for lane in pool.all_lanes()):
                del self.pools[pool.name]
                self.dirty.discard(pool.name)
            else:
                self.dirty.add(pool.name)

    def planner(self, planner_lives: bool) -> None:
        """Set whether a planner is alive. A change makes every pool's shares be computed by the other rule."""
        if self.planned != planner_lives:
            self.planned = planner_lives
            self.dirty.update(self.pools)
            for pool in self.pools.values():
                for lane in pool.all_lanes():
                    lane.feasible = ""  # whether the head fits the owned units must be checked again

    def nodes_changed(self) -> None:
        """Spread shares again over the present nodes, and queue the actions that no earlier node could take."""
        self._by_class.clear()
        for pool in self.pools.values():
            pool.settled = None
            self.dirty.add(pool.name)
            for lane in pool.all_lanes():
                lane.feasible = ""
                for action_id in sorted(lane.parked):
                    action = self.queued[action_id]
                    self._push(lane, action)
                lane.parked.clear()
