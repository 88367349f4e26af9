"""Queues: pools and their lanes, with the actions that wait in each.

Law: a waiting action is in exactly one lane: in its order, or set aside (stuck, behind an earlier action of its
trajectory, or postponed).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.environment_placements import EnvironmentPlacements
from shared.policy.dispatch.lanes import Lanes
from shared.policy.dispatch.queue_checks import check_demand, check_lanes
from shared.policy.dispatch.quota_waiting import WaitingAmounts
from shared.policy.dispatch.stage_durations import StageDurations
from shared.policy.dispatch.trajectories import TrajectoryTurns
from shared.policy.order.batches import BatchRegistry
from shared.policy.order.tenants import FairQueue
from shared.policy.resources.pools import Lane, Pool, quotas_lane
from shared.policy.resources.quota_shares import QuotaShares


@dataclass(slots=True)
class Queues:
    """Waiting work by pool and lane."""

    durations: StageDurations
    trajectories: TrajectoryTurns
    environments: EnvironmentPlacements
    batches: BatchRegistry = field(default_factory=BatchRegistry)
    pools: dict[str, Pool] = field(default_factory=dict)
    queued: dict[str, ActionState] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    """Pools whose shares may have to change; only those that the planner scales."""
    lanes: Lanes = field(default_factory=Lanes)
    """Lanes that a scheduling round serves, and those that sleep."""
    shares: QuotaShares = field(default_factory=QuotaShares)
    """Shares in quotas: the ledger's."""
    waiting_amounts: WaitingAmounts = field(default_factory=WaitingAmounts)
    withdrawn: set[str] = field(default_factory=set)
    """Batches that are being cancelled, and have more actions than one turn ends."""
    _pools_made: int = 0
    planned: bool = True
    """A planner is alive. While none is, targets stay and a zero-queue rule adds to them."""

    def pool(self, name: str) -> Pool:
        """Return the pool of that name; create it on first use."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name, queue=FairQueue(self.shares.tenant_weights))
            self._pools_made += 1
            pool.number = self._pools_made
        return pool

    # ---- one action --------------------------------------------------------------------------------------------

    def enqueue(self, action: ActionState) -> None:
        """Queue an action's current stage. It waits behind an earlier unanswered action of its trajectory, if there is
        one.

        Also computes the durations of an elastic action, so that scheduling rounds need not.
        """
        action.key = self.batches.key(action.request, self.durations.learned)
        self.requeue(action)
        if action.scales:
            self.durations.scalable(action)

    def requeue(self, action: ActionState) -> None:
        """Queue it with its old key. A new key would use newer estimates and could let other work overtake it."""
        request = action.request
        pool = self.pool(action.work.pool)
        action.units = action.work.units
        action.lane = lane = self._lane_of(pool, action)
        action.expected_s = self.durations.expect(action)
        if request.need is not None and self.trajectories.turns[request.need.trajectory][0] != request.id:
            lane.behind.add(request.id)
        else:
            self._push(pool, lane, action)
        self._count(pool, lane, action)

    def enqueue_parked(self, action: ActionState) -> None:
        """Queue a parked action in the lane of its node, with its old key. It keeps its units and its node."""
        pool = self.pool(action.work.pool)
        action.begins = False
        action.lane = lane = pool.lane(action.node)
        self._push(pool, lane, action)
        self._count(pool, lane, action)

    def _count(self, pool: Pool, lane: Lane, action: ActionState) -> None:
        request, amounts = action.request, action.needed_quotas
        self.batches.count_waiting(request, (pool.name, lane.name, request.tenant))
        self.queued[request.id] = action
        pool.count_service(action.work.service, 1)
        pool.queued += 1
        pool.queued_s += action.expected_s * action.pool_units
        if amounts:
            self.waiting_amounts.add(action)
            pool.quota_demand.add(amounts, action.wanted_units, outside=not request.batch)
            if pool.target is not None:
                self.dirty.add(pool.name)
        else:
            self._add_demand(pool, action)

    def _add_demand(self, pool: Pool, action: ActionState) -> None:
        pool.add_demand(action.wanted_units, outside=not action.request.batch)
        action.in_demand = True
        if pool.target is not None:
            self.dirty.add(pool.name)

    def remove(self, action: ActionState) -> None:
        """Remove an action from its queue for good (answered, or about to be queued elsewhere)."""
        self._leave(action)
        self.remove_demand(action)

    def prioritize(self, action: ActionState, priority: float) -> bool:
        """Apply another priority of its trajectory to an action. Returns whether the action has moved in an order; else
        the priority applies when it is queued again.
        """
        if action.request.trajectory_priority == priority:
            return False
        action.request = request = replace(action.request, trajectory_priority=priority)
        action.key = self.batches.reprioritized(action.key, request)  # parked too: it is queued again with this key
        lane = action.lane
        if request.id not in self.queued or lane is None:
            return False
        if request.batch:
            action.key = self.batches.key(request, self.durations.learned)
        if not lane.queue.update(request.tenant, action.key, request.id):
            return False
        self.lanes.wake(self.pool(action.work.pool), lane)
        return True

    def dequeue(self, action: ActionState) -> None:
        """Remove an action from its queue: it is on a node. Its demand remains, or begins if it waited for quotas."""
        pool = self._leave(action)
        if not action.in_demand:
            self._add_demand(pool, action)

    def _leave(self, action: ActionState) -> Pool:
        request, lane = action.request, action.lane
        assert lane is not None, f"{request.id} waits nowhere"
        pool = self.pool(action.work.pool)
        if not lane.queue.remove(request.tenant, request.id) and lane.postponed.pop(request.id, None) is None:
            aside = (lane.stuck, lane.behind, lane.withdrawn)
            next(one for one in aside if request.id in one).remove(request.id)
        self.lanes.wake(pool, lane)
        if lane is not pool and not (lane.queue or lane.waiting):
            pool.lanes.pop(lane.name, None)
            self.lanes.remove(pool, lane)
        pool.queued -= 1
        pool.queued_s -= action.expected_s * action.pool_units
        if request.batch:
            self.batches.uncount_waiting(request, (pool.name, lane.name, request.tenant))
        if not action.in_demand:
            counted = self.waiting_amounts.counted[request.id]
            pool.quota_demand.remove(counted, action.wanted_units, outside=not request.batch)
        del self.queued[request.id]
        pool.count_service(action.work.service, -1)
        self.waiting_amounts.remove(action)
        return pool

    def remove_demand(self, action: ActionState) -> None:
        """Remove the demand of an action that is neither queued nor holds units; no effect if it has none."""
        if not action.in_demand:
            return
        action.in_demand = False
        pool = self.pool(action.work.pool)
        pool.add_demand(-action.wanted_units, outside=not action.request.batch)
        if pool.target is not None:
            self.dirty.add(pool.name)

    def set_stuck(self, lane: Lane, action: ActionState) -> None:
        """Set aside an action that no node could ever take, until nodes change or its deadline comes."""
        if lane.queue.remove(action.request.tenant, action.request.id):  # else its batch is withdrawn
            lane.stuck.add(action.request.id)
            self.waiting_amounts.set_stuck(action.request.id)
        self.lanes.wake(self.pool(action.work.pool), lane)

    def postpone(self, action: ActionState, until_s: float) -> None:
        """Set aside a newly queued action until then, because its node cannot run it earlier."""
        lane = action.lane
        assert lane is not None, f"{action.request.id} waits nowhere"
        if lane.queue.remove(action.request.tenant, action.request.id):
            lane.postponed[action.request.id] = until_s
            self.lanes.wake(self.pool(action.work.pool), lane)

    def _push(self, pool: Pool, lane: Lane, action: ActionState) -> None:
        """Add it to a lane's order; an action of a batch with the batch's present T."""
        request = action.request
        if request.batch in self.withdrawn:
            lane.withdrawn.add(request.id)
            return
        if request.batch:
            action.key = self.batches.key(request, self.durations.learned)
        lane.queue.push(request.tenant, action.key, request.id, request.batch)
        lane.pushed((action.work, action.duration_key) if action.is_like_others and not action.estimated else None)
        self.lanes.wake(pool, lane)

    def _lane_of(self, pool: Pool, action: ActionState) -> Lane:
        need, quotas = action.request.need, action.work.quotas
        action.begins = need is not None and self.environments.begins(need)
        if need is not None:
            return pool.lane(None if action.begins else self.environments.placements[need.trajectory].node)
        if not quotas:
            return pool
        if (known := pool.lanes.get(quotas_lane(quotas))) is not None:
            return known
        shared = next(iter(self.shares.among(quotas)), "")
        return pool.lane("", quotas, shared, self.shares.by_quota[shared].weights if shared else None)

    # ---- many actions ------------------------------------------------------------------------------------------

    def requeue_due(self, now: float, images: Container[str] = ()) -> int:
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
                        self._push(pool, lane, action)
                        count += 1
        return count

    def withdraw(self, batch: str) -> None:
        """Remove the actions of a batch from every order before they are cancelled. They still wait in their lanes, and
        whatever is queued of the batch from now on does the same. O(actions of the batch), 0.5 us each.
        """
        self.withdrawn.add(batch)
        for name, lane_name, tenant in self.batches.places(batch):
            pool = self.pools[name]
            lane = pool if lane_name == name else pool.lanes[lane_name]
            lane.withdrawn.update(lane.queue.remove_batch(tenant, batch))
            self.lanes.wake(pool, lane)

    def rekey(self, batch: str, at_s: float) -> None:
        """Move a batch to its new expected completion in every queue where its requests wait."""
        for name, lane_name, tenant in self.batches.apply_estimate(batch, at_s):
            pool = self.pools.get(name)
            lane = pool if pool is None or lane_name == name else pool.lanes.get(lane_name)
            if lane is not None:  # else the lane is gone, or has only actions set aside
                lane.queue.move(tenant, batch, self.batches.due(batch))
                self.lanes.wake(self.pools[name], lane)

    def change_lane(self, trajectory: str) -> None:
        """Move a trajectory's waiting actions to another lane after its placement has changed."""
        for action_id in self.trajectories.turns.get(trajectory, ()):
            action = self.queued.get(action_id)
            if action is not None and not action.parked:
                self.remove(action)
                self.enqueue(action)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the weights of all tenants; others have the default. Earlier charges stay."""
        self.shares.tenant_weights.clear()
        self.shares.tenant_weights.update(weights)

    # ---- all pools ---------------------------------------------------------------------------------------------

    def next_window(self) -> None:
        """Start a new linger window: shares may shrink, and pools without recent demand are deleted."""
        for pool in list(self.pools.values()):
            pool.next_window()
            if pool.target is None and not pool.demand.peak and not any(lane.waiting for lane in pool.all_lanes()):
                del self.pools[pool.name]
                self.dirty.discard(pool.name)
            else:
                self.dirty.add(pool.name)

    def set_planned(self, planned: bool) -> None:
        """Set whether a planner is alive. A change makes every pool's shares be computed by the other rule."""
        if self.planned != planned:
            self.planned = planned
            self.dirty.update(self.pools)
            self.lanes.wake_all()
            for pool in self.pools.values():
                for lane in pool.all_lanes():
                    lane.feasible = ""  # whether the head fits the owned units must be checked again

    def nodes_changed(self) -> None:
        """Spread shares again over the present nodes, and queue the actions that no earlier node could take.

        In one turn, 15 us for each stuck action with the round that sets it aside again: 1.5 s for 100,000.
        """
        self.lanes.wake_all()
        for pool in self.pools.values():
            pool.settled = None
            self.dirty.add(pool.name)
            for lane in pool.all_lanes():
                self._queue_stuck(pool, lane)

    def quotas_changed(self) -> None:
        """Queue the actions whose quotas could not give what they need before; those that still cannot are set
        aside again.
        """
        for pool in self.pools.values():
            for lane in pool.all_lanes():
                if any(self.queued[action_id].work.quotas for action_id in lane.stuck):
                    self._queue_stuck(pool, lane)

    def quotas_free(self) -> None:
        """Compute the shares of pools again whose waiting work takes quotas, because more may be free. O(pools)."""
        self.dirty.update(one.name for one in self.pools.values() if one.target is not None and one.quota_demand.sets)

    def _queue_stuck(self, pool: Pool, lane: Lane) -> None:
        lane.feasible = ""
        self.waiting_amounts.queue_again(lane.stuck)
        for action_id in sorted(lane.stuck):
            self._push(pool, lane, self.queued[action_id])
        lane.stuck.clear()

    # ---- invariants --------------------------------------------------------------------------------------------

    def check(self, held: Iterable[ActionState]) -> None:
        """Assert the invariants; tests call it after every step, services never do. `held`: actions on nodes."""
        held = list(held)
        self.lanes.check(self.pools.values())
        self.waiting_amounts.check(self.queued, self.pools.values())
        for pool in self.pools.values():
            queued = {name: action for name, action in self.queued.items() if action.work.pool == pool.name}
            check_lanes(pool, queued)
            here = [one for one in held if one.work.pool == pool.name]
            check_demand(pool, list(queued.values()), here, self.waiting_amounts.counted)
