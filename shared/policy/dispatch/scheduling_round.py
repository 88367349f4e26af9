"""Scheduling round: one pass over queues and nodes after an event. Grants, reservations and backfill.

Law: among requests of a pool that fit, the earliest batch of the tenant in turn goes first. A head that does not fit
reserves units on the node where they are predicted to be free together first. On that node, later work may start only
if it is predicted to end before that time or needs none of the head's resources. Pools are served in the order of their
heads' keys, so a resource that several pools use is reserved for the oldest need. Short heads may be prefetched (see
`prefetch`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.blocked import Blocked
from shared.policy.dispatch.call_waits import CallWaits
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.elastic_grants import NewGrant, grant_elastic_units
from shared.policy.dispatch.elastic_waits import ElasticWaits
from shared.policy.dispatch.engine_choice import EngineChoice, sharers
from shared.policy.dispatch.invariants import InvariantError
from shared.policy.dispatch.lanes import FAR_AGAIN_S, FAR_S, behind_head
from shared.policy.dispatch.late_calls import LateCalls, overtake
from shared.policy.dispatch.node_choice import is_possible, most_free, owns_less, place_prefetched, places
from shared.policy.dispatch.quota_amounts import estimate_amounts
from shared.policy.dispatch.quota_turns import QuotaTurns
from shared.policy.dispatch.quota_waits import Need
from shared.policy.dispatch.refused_work import RefusedWork
from shared.policy.dispatch.shares import update_shares
from shared.policy.dispatch.sleeping import SleepingHeads, follows, sleeper
from shared.policy.dispatch.stuck import is_stuck
from shared.policy.dispatch.swaps import Swaps
from shared.policy.model.formulation import Command, Grant, Resume
from shared.policy.model.quotas import Rate
from shared.policy.order.ebf import EbfKey
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import BACKFILL_DEPTH, Lane, Pool


@dataclass(slots=True)
class SchedulingRound:
    """Decisions of one round so far."""

    cluster: ClusterState
    now: float
    commands: list[Command]
    blocked: list[Blocked] = field(default_factory=list)
    new_grants: list[NewGrant] = field(default_factory=list)
    """Grants of this round, in order; none has been sent yet."""
    scales: bool = False
    """A grant of this round might get more than its fewest units."""
    reshared: set[str] = field(default_factory=set)
    """Blocked heads for which shares were updated. Once a round for each: an update can take back what another gave."""
    reached: EbfKey | None = None
    """Highest key of a head that was served: lanes with a lower one precede. The next head of a lane may have a lower
    key, because it is another tenant's turn."""
    sleeping: SleepingHeads = field(init=False)
    """Reservations of sleeping lanes' heads."""
    waits: ElasticWaits = field(init=False)
    turns: QuotaTurns = field(init=False)
    swaps: Swaps = field(init=False)
    engines: EngineChoice = field(init=False)
    calls: CallWaits = field(init=False)
    trying: str = ""
    """Action for which a node was looked for last."""

    def __post_init__(self) -> None:
        self.waits = ElasticWaits(self.cluster, self.now, self.new_grants)
        self.turns = QuotaTurns(self.cluster, self.now)
        self.swaps = Swaps(self.cluster, self.now)
        self.engines = EngineChoice(self.cluster, self.now)
        self.calls = CallWaits(self.swaps, self.engines, self.new_grants)
        self.sleeping = SleepingHeads(self.cluster, self.now, self.waits.nodes)

    def forbids(self, node: Node, action: ActionState) -> bool:
        """Return whether this work, started there now, would delay a blocked head."""
        if self.blocked and any(one.forbids(self.cluster, node, action, self.now) for one in self.blocked):
            return True
        if self.engines.reserved and self.engines.forbids(node, action):
            return True
        if not self.cluster.queues.lanes.asleep:
            return False
        assert self.reached is not None, "work is placed for a lane"
        return self.sleeping.forbid(self.reached, node, action)

    def serve(self, waiting: list[tuple[Pool, Lane]], free: Iterable[Need] = ()) -> None:
        """Serve the lanes; each time, the lane whose head has the lowest key.

        `free`: quotas that sleeping lanes lack and that are free now. Lanes that wait for other tenants' turns in a
        quota are served again after these turns.
        """
        self._serve_lanes(waiting, free)
        while again := self.turns.next_pass():
            self._serve_lanes(again)
        if self.calls.put_off:
            for left in self.calls.left(self.cluster.queues.lanes):
                self._serve_lanes([left])

    def _serve_lanes(self, waiting: list[tuple[Pool, Lane]], free: Iterable[Need] = ()) -> None:
        if len(waiting) == 1 and not free:
            pool, lane = waiting[0]
            more = True
            while more:
                if self.cluster.queues.lanes.asleep:
                    self._reach(lane.queue.head_key())
                more = self._serve(pool, lane)
            return
        heads = [(lane.queue.head_key(), at) for at, (_, lane) in enumerate(waiting)]
        heapq.heapify(heads)
        woken: dict[int, Need] = {}

        def wake_next(need: Need) -> None:
            first = self.cluster.queues.lanes.wake_first(need, self.cluster.quotas, self.now)
            if first is not None:
                woken[len(waiting)] = need
                heapq.heappush(heads, (first[1].queue.head_key(), len(waiting)))
                waiting.append(first)

        for need in free:
            wake_next(need)
        while heads:
            key, at = heads[0]
            self._reach(key)
            if self._serve(*waiting[at]):
                heapq.heapreplace(heads, (waiting[at][1].queue.head_key(), at))
            else:
                heapq.heappop(heads)
            if at in woken:
                wake_next(woken.pop(at))

    def _reach(self, key: EbfKey) -> None:
        self.reached = key if self.reached is None else max(self.reached, key)

    def _serve(self, pool: Pool, lane: Lane) -> bool:
        """Grant the head of a lane, or reserve units for it. False: the lane is finished for this round."""
        cluster, head = self.cluster, lane.queue.head()
        if head is None:
            return False
        nodes, action = cluster.nodes.of(pool, lane), cluster.queues.queued[head]
        node = self.place(pool, lane, action)
        if node is not None:
            self._grant(lane, action, node, is_head=True)
        elif is_stuck(cluster, pool, lane, action):
            cluster.queues.set_stuck(lane, action)
        elif shares := self._reshare(pool, lane, action):
            self.commands += shares
            cluster.promote(self.now)
        elif (node := self._place_prefetched(pool, lane, action)) is not None:
            self._grant(lane, action, node, is_head=True, prefetched=True)
        else:
            lane.feasible = head
            waits = head in self.turns.held_back or self.swaps.puts_off(head) or head in self.engines.waiting
            if not waits and not follows(self.waits.nodes, nodes, action):
                self.blocked.append(Blocked.of(action, pool, lane, self.swaps.spared.get(head)))
            alone = not self._backfill(pool, lane) and self.calls.insists(pool, lane, head)
            if alone and (node := self.place(pool, lane, action)) is not None:
                self._grant(lane, action, node, is_head=True)
                return bool(lane.queue)
            if (one := sleeper(cluster, pool, lane, self.now)) is not None:
                cluster.queues.lanes.sleep(one, cluster.quotas, self.now)
                self.sleeping.served.add((pool.name, lane.name))
            return False
        return bool(lane.queue)

    def _reshare(self, pool: Pool, lane: Lane, action: ActionState) -> list[Command]:
        """Update the shares of a pool for a head that fits no node, at most once in the round."""
        head = action.request.id
        if pool.target is None or head in self.reshared or not owns_less(self.cluster, pool, lane):
            return []
        if self.turns.lacks(action):
            return []  # more units would not let it start
        self.reshared.add(head)
        return update_shares(self.cluster, pool, self.now, blocked=True)

    def place(self, pool: Pool, lane: Lane, action: ActionState) -> Node | None:
        """Return the node where the action may start now, if any."""
        self.trying = action.request.id
        if action.parked:
            return self._place_parked(action)
        if action.work.quotas:
            estimate_amounts(self.cluster, action)
            if self.turns.lacks(action):
                return None
        waits: AbstractSet[str] = self.waits.nodes if action.scales else frozenset()
        if action.scales:
            action.units = action.work.units  # decided anew each time
        of_engine = action.scales and bool(action.work.service)
        of_engines = self.engines.places(pool, lane, action) if of_engine else None
        for node in of_engines or places(self.cluster, pool, lane, action, self.now, waits):
            if action.work.service and self.swaps.too_early(node, action):
                continue
            if not (
                self.forbids(node, action) or (action.scales and not of_engine and self.waits.too_early(node, action))
            ):
                return node
        if of_engine:
            self.engines.gave_up(pool, lane, action)
        if action.work.quotas:
            self.turns.found_no_node(action)
        return None

    def _place_parked(self, action: ActionState) -> Node | None:
        """Return the node of a parked action if it may continue there now."""
        node = self.cluster.nodes.present[action.node]
        if not node.ready or not node.has_free(action.units) or self.forbids(node, action):
            return None
        return node

    def _place_prefetched(self, pool: Pool, lane: Lane, action: ActionState) -> Node | None:
        """Return the node whose queue may take a head that does not fit, if any."""
        cluster = self.cluster
        if not cluster.prefetch.short:
            return None
        node = place_prefetched(cluster, pool, lane, action, cluster.durations.expect(action))
        if node is None or node.has_free(action.work.units):  # free: it waits for more units, see `too_early`
            return None
        return None if self.forbids(node, action) else node

    def _backfill(self, pool: Pool, lane: Lane) -> int:
        """Grant work behind a head that does not fit, as its reservation allows. Returns the number of grants."""
        # free units do not limit work that may join others
        cluster, joins, before = self.cluster, self.cluster.nodes.are_structured(pool), len(self.new_grants)
        most = most_free(cluster, pool, lane)
        most_elastic, refused, tried = most, RefusedWork(self.turns, joins), 0
        late = LateCalls(self.swaps, self.blocked, {cluster.queues.queued[lane.feasible].work.service})
        far = joins and len(pool.services) > 1 and self.now >= lane.far_at_s
        behind = behind_head(lane, far=far) if (most or joins) and not self.turns.refuse_all(lane) else ()
        for action in [cluster.queues.queued[name] for name in behind]:
            if self.engines.is_full(pool, lane, action) or action in refused:
                continue
            if not joins and action.pool_units > (most_elastic if action.scales else most):
                continue
            if (tried := tried + 1) > BACKFILL_DEPTH:
                break
            node = self.place(pool, lane, action)
            if action.scales:
                most_elastic = most_free(cluster, pool, lane, self.waits.nodes)
            if node is not None:
                overtake(cluster, lane, action, self.now)
                self._grant(lane, action, node, is_head=False)
                refused.granted()
                most = most_free(cluster, pool, lane)
                if not (most or joins):
                    break
            elif not is_possible(cluster, pool, lane, action):
                cluster.queues.set_stuck(lane, action)
            else:
                refused.add(action)
                late.refused(pool, lane, action)
        granted = len(self.new_grants) - before
        if far:
            lane.far_at_s = self.now + (FAR_AGAIN_S if granted else FAR_S)
        return granted

    def _grant(self, lane: Lane, action: ActionState, node: Node, *, is_head: bool, prefetched: bool = False) -> None:
        """Charge the tenant, assign the action to the node, and add the command."""
        cluster, request, begins = self.cluster, action.request, action.begins
        if action.parked:
            self._resume(lane, action, node, is_head=is_head)
            return
        expected_s = action.expected_s if action.work.duration_s is not None else cluster.durations.expect(action)
        charged_s = expected_s * max(1, action.pool_units) / sharers(node, action)
        if lane.shared:
            charged_s = action.needed_quotas.get(lane.shared, 0.0)  # tenants share the quota, not the units
        since = lane.queue.charge(request.tenant, charged_s, ends_turn=is_head)
        if request.need is not None:
            action.charged_s, action.charged_since = charged_s, since
        cluster.queues.dequeue(action)
        if prefetched or not action.scales:
            action.units, action.expected_s = action.work.units, expected_s
        else:
            fewest = action.units is action.work.units  # else it has waited for more units
            action.expected_s = expected_s if fewest else cluster.durations.expect(action, action.granted_units)
        action.move("granted")
        action.attempt += 1
        if action.scales and action.work.service:
            self.engines.granted(action, node)
        hold = cluster.assign(action, node, self.now, prefetched=prefetched)
        if begins:
            cluster.begin_environment(action, node, self.now)
        budget = max(0.0, request.deadline_s - self.now)
        if not prefetched:
            self.new_grants.append(NewGrant(len(self.commands), action, node, charged_s, is_head))
            self.scales = self.scales or action.scales
        rates: tuple[tuple[str, Rate], ...] = ()
        if hold is not None:
            rates = cluster.quotas.rates_of(hold.amounts)
            self.turns.granted(action, lane)
        numbers, attempt = node.numbers(action.resource, request.id), (request.id, node.name, action.attempt)
        grant = Grant(*attempt, action.stage, action.units, budget, begins, hold, rates, numbers, action.failed_calls)
        self.commands.append(grant)

    def _resume(self, lane: Lane, action: ActionState, node: Node, *, is_head: bool) -> None:
        """Let a parked action continue. Its tenant is charged for the expected time until it is parked again."""
        request = action.request
        lane.queue.charge(request.tenant, action.between_parks_s * max(1, action.granted_units), ends_turn=is_head)
        self.cluster.queues.dequeue(action)
        self.cluster.resume(action, node, self.now)
        self.new_grants.append(NewGrant(len(self.commands), action, node, 0.0, is_head, resumed=True))
        budget_s = max(0.0, request.deadline_s - self.now)
        self.commands.append(Resume(request.id, node.name, action.attempt, action.units, budget_s))


def schedule(cluster: ClusterState, now: float) -> list[Command]:
    """Run one round: update shares that may have changed, then grant what fits, pool by pool."""
    commands: list[Command] = []
    cluster.promote(now)
    if cluster.quotas.refunded:
        cluster.quotas.refunded = False
        cluster.queues.quotas_changed()
    if cluster.quotas.limits and (cluster.quotas.changed or cluster.next_wake_s <= now):
        cluster.queues.quotas_free()
    if cluster.queues.dirty:
        for name in sorted(cluster.queues.dirty):
            commands += update_shares(cluster, cluster.queues.pools[name], now)
        cluster.queues.dirty.clear()
        cluster.promote(now)
    scheduling = SchedulingRound(cluster, now, commands)
    free = cluster.queues.lanes.wake_quotas(cluster.quotas, now)
    try:
        scheduling.serve(cluster.queues.lanes.to_serve(), free)
    except Exception as error:
        raise InvariantError(f"{scheduling.trying}: {type(error).__name__}: {error}", scheduling.trying) from error
    cluster.next_wake_s = scheduling.turns.next_wake_s(one.head for one in scheduling.blocked)
    return grant_elastic_units(cluster, now, commands, scheduling.new_grants) if scheduling.scales else commands
