"""Who waits: pools, their lanes, and what each waiting action could run on."""

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
    """A planner lives. While none does, targets stay and a zero-queue rule serves beside them."""
    _by_class: dict[str, list[Node]] = field(default_factory=dict)
    """Nodes of a class by name, while the set of nodes stays as it is."""

    def pool(self, name: str) -> Pool:
        """The pool of that name, made at first sight."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
        return pool

    def nodes_of(self, pool: Pool, lane: Lane | None = None) -> list[Node]:
        """Nodes that belong to a pool, by name; of a lane that is bound to one, that one. Not to be changed."""
        if lane is not None and lane.node:
            bound = self.nodes.get(lane.node)
            return [bound] if bound is not None and bound.node_class == pool.node_class else []
        nodes = self._by_class.get(pool.node_class)
        if nodes is None:
            nodes = [node for _, node in sorted(self.nodes.items()) if node.node_class == pool.node_class]
            self._by_class[pool.node_class] = nodes
        return nodes

    def expect(self, action_state: ActionState, units: int | None = None) -> float:
        """Seconds its stage is expected to take on so many units of its pool's resource; None: on the fewest.

        By the trainer's word, else by what was seen of its kind; never more than the timeout.
        """
        work = action_state.work
        if work.elasticity is None or not action_state.scales:
            if work.duration_s is not None:
                return min(work.timeout_s, work.duration_s)
            return self.durations.expect(action_state.duration_key, work.timeout_s)
        single_s = self.single(action_state)
        if single_s is None:
            return self.durations.expect(action_state.duration_key, work.timeout_s)
        return min(
            work.timeout_s, work.elasticity.duration(single_s, action_state.pool_units if units is None else units)
        )

    def expect_at_most(self, action_state: ActionState) -> float:
        """Seconds it will as a rule not take longer than, on the fewest units: with the spread of its kind."""
        expected_s, work = self.expect(action_state), action_state.work
        spread_s = self.durations.spread(action_state.duration_key) if work.duration_s is None else None
        if spread_s is None:
            return expected_s
        if action_state.scales and work.elasticity is not None:  # the spread is that on one unit
            spread_s = work.elasticity.duration(spread_s, action_state.pool_units)
        return min(work.timeout_s, expected_s + spread_s)

    def single(self, action_state: ActionState) -> float | None:
        """Seconds its stage takes on one unit; None where nobody knows."""
        if action_state.work.duration_s is not None:
            return action_state.work.duration_s
        return self.durations.single(action_state.duration_key)

    def learn(self, action_state: ActionState, seconds: float) -> None:
        """Its stage has taken so long on the units it was granted."""
        elasticity = action_state.work.elasticity
        if action_state.scales and elasticity is not None:
            seconds = elasticity.single(seconds, action_state.granted_units)
        self.durations.seen(action_state.duration_key, seconds)

    # ---- queues ------------------------------------------------------------------------------------------------

    def enqueue(self, action_state: ActionState) -> None:
        """Queue a life's current stage, unless an earlier action of its trajectory is still unanswered."""
        action_state.key = self.batches.key(action_state.request, self.durations)
        self.requeue(action_state)

    def requeue(self, action_state: ActionState) -> None:
        """Queue it at the place that it had. Were its key made anew, what was learned since could let others pass."""
        request = action_state.request
        pool = self.pool(action_state.work.pool)
        action_state.units = action_state.work.units
        action_state.lane = lane = self._lane_of(pool, action_state)
        action_state.expected_s = self.expect(action_state)
        if request.need is not None and self.trajectories.turns[request.need.trajectory][0] != request.id:
            lane.behind.add(request.id)
        else:
            self._push(lane, action_state)
        self.batches.waits(request, (pool.name, lane.name, request.tenant))
        self.queued[request.id] = action_state
        pool.queued_s += action_state.expected_s * action_state.pool_units
        pool.note(action_state.wanted_units, outside=not request.batch)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def _push(self, lane: Lane, action_state: ActionState) -> None:
        """Into the order of a lane; of a batch with the T that it has by now."""
        request = action_state.request
        if request.batch:
            action_state.key = self.batches.key(request, self.durations)
        lane.queue.push(request.tenant, action_state.key, request.id, request.batch)

    def dequeue(self, action_state: ActionState) -> None:
        """Take a queued life out of its queue for good (answered, or about to be queued elsewhere)."""
        self.unqueue(action_state)
        self._left(action_state)

    def unqueue(self, action_state: ActionState) -> None:
        """Take a queued life out of its queue because it is on a node from now on."""
        request, lane = action_state.request, action_state.lane
        assert lane is not None, f"{request.id} waits nowhere"
        pool = self.pool(action_state.work.pool)
        if not lane.queue.remove(request.tenant, request.id) and lane.postponed.pop(request.id, None) is None:
            (lane.parked if request.id in lane.parked else lane.behind).remove(request.id)
        if lane is not pool and not lane.waiting:
            pool.lanes.pop(lane.name, None)
        pool.queued_s -= action_state.expected_s * action_state.pool_units
        if request.batch:
            self.batches.leaves(request, (pool.name, lane.name, request.tenant))
        del self.queued[request.id]

    def park(self, lane: Lane, action_state: ActionState) -> None:
        """No node could ever take it: it waits aside, until nodes change or its deadline comes."""
        lane.queue.remove(action_state.request.tenant, action_state.request.id)
        lane.parked.add(action_state.request.id)

    def postpone(self, action_state: ActionState, until_s: float) -> None:
        """Let what has just been queued wait aside until then: its node cannot do it before."""
        lane = action_state.lane
        assert lane is not None, f"{action_state.request.id} waits nowhere"
        if lane.queue.remove(action_state.request.tenant, action_state.request.id):
            lane.postponed[action_state.request.id] = until_s

    def resume(self, now: float, images: Container[str] = ()) -> int:
        """Queue again, at the place that it had, what was postponed until now or needs one of these images. Returns how
        many actions. O(lanes + postponed actions).
        """
        count = 0
        for pool in self.pools.values():
            for lane in pool.all_lanes():
                for action, until_s in list(lane.postponed.items()):
                    action_state = self.queued[action]
                    if until_s <= now or (
                        action_state.request.need is not None and action_state.request.need.image in images
                    ):
                        del lane.postponed[action]
                        self._push(lane, action_state)
                        count += 1
        return count

    def rekey(self, batch: str, at_s: float) -> None:
        """A batch's expected completion has a new estimate: it moves in the queues in which its requests wait."""
        for name, lane_name, tenant in self.batches.expected(batch, at_s):
            pool = self.pools.get(name)
            lane = pool if pool is None or lane_name == name else pool.lanes.get(lane_name)
            if lane is not None:  # else what waits there is not in order: its lane holds nothing but what stands aside
                lane.queue.move(tenant, batch, self.batches.due(batch))

    def move(self, trajectory: str) -> None:
        """Where a trajectory lives has changed: what waits for it waits in another lane."""
        for action in self.trajectories.turns.get(trajectory, ()):
            action_state = self.queued.get(action)
            if action_state is not None:
                self.dequeue(action_state)
                self.enqueue(action_state)

    def _lane_of(self, pool: Pool, action_state: ActionState) -> Lane:
        need = action_state.request.need
        action_state.begins = self.trajectories.begins(need)
        if need is None:
            return pool
        return pool.lane(None if action_state.begins else self.trajectories.placements[need.trajectory].node)

    def _left(self, action_state: ActionState) -> None:
        pool = self.pool(action_state.work.pool)
        pool.note(-action_state.wanted_units, outside=not action_state.request.batch)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def next_window(self) -> None:
        """A linger window is over: shares may shrink, and pools that nobody has wanted anything of are forgotten."""
        for pool in list(self.pools.values()):
            pool.next_window()
            if pool.target is None and not pool.demand.peak and not any(lane.waiting for lane in pool.all_lanes()):
                del self.pools[pool.name]
                self.dirty.discard(pool.name)
            else:
                self.dirty.add(pool.name)

    def planner(self, planner_lives: bool) -> None:
        """A planner lives, or none does: where that is news, every pool is shared out by the other rule."""
        if self.planned != planner_lives:
            self.planned = planner_lives
            self.dirty.update(self.pools)
            for pool in self.pools.values():
                for lane in pool.all_lanes():
                    lane.feasible = ""  # whether the head fits what is owned must be seen anew

    def nodes_changed(self) -> None:
        """Shares must be spread anew over the nodes there are, and what none could take may find one."""
        self._by_class.clear()
        for pool in self.pools.values():
            pool.settled = None
            self.dirty.add(pool.name)
            for lane in pool.all_lanes():
                lane.feasible = ""
                for action in sorted(lane.parked):
                    action_state = self.queued[action]
                    self._push(lane, action_state)
                lane.parked.clear()
