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

    def expect(self, life: ActionState, units: int | None = None) -> float:
        """Seconds its stage is expected to take on so many units of its pool's resource; None: on the fewest.

        By the trainer's word, else by what was seen of its kind; never more than the timeout.
        """
        work = life.work
        if work.elasticity is None or not life.scales:
            if work.duration_s is not None:
                return min(work.timeout_s, work.duration_s)
            return self.durations.expect(life.duration_key, work.timeout_s)
        single_s = self.single(life)
        if single_s is None:
            return self.durations.expect(life.duration_key, work.timeout_s)
        return min(work.timeout_s, work.elasticity.duration(single_s, life.pool_units if units is None else units))

    def expect_at_most(self, life: ActionState) -> float:
        """Seconds it will as a rule not take longer than, on the fewest units: with the spread of its kind."""
        expected_s, work = self.expect(life), life.work
        spread_s = self.durations.spread(life.duration_key) if work.duration_s is None else None
        if spread_s is None:
            return expected_s
        if life.scales and work.elasticity is not None:  # the spread is that on one unit
            spread_s = work.elasticity.duration(spread_s, life.pool_units)
        return min(work.timeout_s, expected_s + spread_s)

    def single(self, life: ActionState) -> float | None:
        """Seconds its stage takes on one unit; None where nobody knows."""
        if life.work.duration_s is not None:
            return life.work.duration_s
        return self.durations.single(life.duration_key)

    def learn(self, life: ActionState, seconds: float) -> None:
        """Its stage has taken so long on the units it was granted."""
        elasticity = life.work.elasticity
        if life.scales and elasticity is not None:
            seconds = elasticity.single(seconds, life.granted_units)
        self.durations.seen(life.duration_key, seconds)

    # ---- queues ------------------------------------------------------------------------------------------------

    def enqueue(self, life: ActionState) -> None:
        """Queue a life's current stage, unless an earlier action of its trajectory is still unanswered."""
        life.key = self.batches.key(life.request, self.durations)
        self.requeue(life)

    def requeue(self, life: ActionState) -> None:
        """Queue it at the place that it had. Were its key made anew, what was learned since could let others pass."""
        request = life.request
        pool = self.pool(life.work.pool)
        life.units = life.work.units
        life.lane = lane = self._lane_of(pool, life)
        life.expected_s = self.expect(life)
        if request.stay is not None and self.trajectories.turns[request.stay.trajectory][0] != request.id:
            lane.behind.add(request.id)
        else:
            self._push(lane, life)
        self.batches.waits(request, (pool.name, lane.name, request.tenant))
        self.queued[request.id] = life
        pool.queued_s += life.expected_s * life.pool_units
        pool.note(life.wanted_units, outside=not request.batch)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def _push(self, lane: Lane, life: ActionState) -> None:
        """Into the order of a lane; of a batch with the T that it has by now."""
        request = life.request
        if request.batch:
            life.key = self.batches.key(request, self.durations)
        lane.queue.push(request.tenant, life.key, request.id, request.batch)

    def dequeue(self, life: ActionState) -> None:
        """Take a queued life out of its queue for good (answered, or about to be queued elsewhere)."""
        self.unqueue(life)
        self._left(life)

    def unqueue(self, life: ActionState) -> None:
        """Take a queued life out of its queue because it is on a node from now on."""
        request, lane = life.request, life.lane
        assert lane is not None, f"{request.id} waits nowhere"
        pool = self.pool(life.work.pool)
        if not lane.queue.remove(request.tenant, request.id) and lane.postponed.pop(request.id, None) is None:
            (lane.parked if request.id in lane.parked else lane.behind).remove(request.id)
        if lane is not pool and not lane.waiting:
            pool.lanes.pop(lane.name, None)
        pool.queued_s -= life.expected_s * life.pool_units
        if request.batch:
            self.batches.leaves(request, (pool.name, lane.name, request.tenant))
        del self.queued[request.id]

    def park(self, lane: Lane, life: ActionState) -> None:
        """No node could ever take it: it waits aside, until nodes change or its deadline comes."""
        lane.queue.remove(life.request.tenant, life.request.id)
        lane.parked.add(life.request.id)

    def postpone(self, life: ActionState, until_s: float) -> None:
        """Let what has just been queued wait aside until then: its node cannot do it before."""
        lane = life.lane
        assert lane is not None, f"{life.request.id} waits nowhere"
        if lane.queue.remove(life.request.tenant, life.request.id):
            lane.postponed[life.request.id] = until_s

    def resume(self, now: float, images: Container[str] = ()) -> int:
        """Queue again, at the place that it had, what was postponed until now or needs one of these images. Returns how
        many actions. O(lanes + postponed actions).
        """
        count = 0
        for pool in self.pools.values():
            for lane in pool.all_lanes():
                for action, until_s in list(lane.postponed.items()):
                    life = self.queued[action]
                    if until_s <= now or (life.request.stay is not None and life.request.stay.image in images):
                        del lane.postponed[action]
                        self._push(lane, life)
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
            life = self.queued.get(action)
            if life is not None:
                self.dequeue(life)
                self.enqueue(life)

    def _lane_of(self, pool: Pool, life: ActionState) -> Lane:
        stay = life.request.stay
        life.begins = self.trajectories.begins(stay)
        if stay is None:
            return pool
        return pool.lane(None if life.begins else self.trajectories.homes[stay.trajectory].node)

    def _left(self, life: ActionState) -> None:
        pool = self.pool(life.work.pool)
        pool.note(-life.wanted_units, outside=not life.request.batch)
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

    def planner(self, lives: bool) -> None:
        """A planner lives, or none does: where that is news, every pool is shared out by the other rule."""
        if self.planned != lives:
            self.planned = lives
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
                    life = self.queued[action]
                    self._push(lane, life)
                lane.parked.clear()
