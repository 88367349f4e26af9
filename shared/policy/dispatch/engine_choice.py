"""Choice of an engine for elastic work of a model service: degree, node and chunk (ARL-Tangram §4.2, §5.3).

Each degree of a service is an engine of its own, so a degree costs more than its duration: a restore, if no free chunk
holds the service at that degree, and before it the evictions of what is in its way. So calls are planned on the chunks
of their nodes (`elastic.engine_plan`), with the least sum of ACT and a price on GPU-seconds: what they cost calls that
wait behind the plan, and those that will arrive (`elastic.scheduling.price`). What earlier calls have lost for want of
another degree is taken off the cost of its restore (`resources.restore_credits`).
Laws:
  - if few calls wait for few GPUs, those of a lane are planned together; else one after the other, in their order.
    Those that have waited for `swap_wait_s` are planned first, so others do not postpone them any more;
  - a call whose place is in the future waits: for a slot of a busy engine, for GPUs, or because a call behind it needs
    the engine that it would evict. If it could begin now elsewhere, it reserves nothing until that age;
  - the head of a lane that has waited for `swap_wait_s` reserves its place, also if no GPU is free: work that its plan
    does not contain starts on that node only if it is predicted to end before, with its evictions and its restore;
  - if nothing behind it was granted, it waits for busy engines only. Each end on them is a new plan, and a predicted
    end that is overdue moves away by as much as it is overdue, until another place costs less;
  - a call of unknown duration, or without an elastic rule, is not planned. It gets the fewest GPUs on which a node of
    its lane could run it, and a head that waits reserves as many;
  - a plan lasts for one round, and knows no grants of other lanes: a place is checked before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.lanes import behind_head
from shared.policy.dispatch.node_choice import fewest_units, places
from shared.policy.elastic import engine_states as of
from shared.policy.elastic.engine_plan import MOST_PLANNED, EnginePlan, PlannableCall, PlannedPlace
from shared.policy.elastic.scheduling import Scalable, price
from shared.policy.model.chunks import SIZES
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.engine_records import ROW_COLUMNS, EngineRecords, floats, number_of
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool
from shared.policy.resources.resource import Use
from shared.policy.resources.restore_credits import NO_CREDITS

MOST_GPUS: Final = 16
"""Most GPUs of a pool on which several calls are planned together; on more, one by one."""


@dataclass(slots=True)
class LanePlan:
    """Plan of one lane."""

    nodes: list[Node]
    plan: EnginePlan
    price: float
    places: dict[str, PlannedPlace | None] = field(default_factory=dict)
    """Action -> its place; None: it has none."""
    first: str = ""
    """Action that was placed first, before all others; empty: several were placed together."""
    _calls: dict[str, PlannableCall] = field(default_factory=dict)
    """By action."""
    _rows: dict[str, list[bytes]] = field(default_factory=dict)
    """Service -> its rows, by node."""

    def call(self, action: ActionState, scaled: Scalable, cluster: ClusterState) -> PlannableCall:
        """Return what the plan needs to know of an action."""
        name, work = action.request.id, action.work
        if name in self._calls:
            return self._calls[name]
        seconds = dict(zip(scaled.amounts, scaled.durations_s.tolist(), strict=True))
        lasts_s = [seconds.get(size, math.inf) for size in SIZES]
        service, kind, others = work.service, work.kind, {**work.units}
        del others[action.resource]
        rows = self._rows.get(service)
        if rows is None:
            rows = [node.resources[action.resource].service_row(service) for node in self.nodes]
            self._rows[service] = rows
        accepted = [node.accepts(name, kind) and (not others or node.has_free(others)) for node in self.nodes]
        pool = cluster.queues.pool(work.pool)
        sharers = pool.services.get(service, 1) or 1
        credits_s = pool.restore_credits.of(service) if cluster.elastic.rule == "priced" else NO_CREDITS
        made = PlannableCall(number_of(service), lasts_s, rows, accepted, sharers, credits_s)
        self._calls[name] = made
        return made


class ReservedPlace(NamedTuple):
    """Place in the future of the head of a lane."""

    head: str
    lane: tuple[str, str]
    """Names of its pool and lane."""
    resource: str
    node: Node
    begin_s: float


@dataclass(slots=True)
class EngineChoice:
    """Choices of one scheduling round."""

    cluster: ClusterState
    now: float
    waiting: set[str] = field(default_factory=set)
    """Actions whose place is in the future, and that could begin now elsewhere or have reserved it."""
    insisting: str = ""
    """Action that waits for busy engines only."""
    full: set[tuple[object, ...]] = field(default_factory=set)
    """Shapes of calls that no place is free for in this round (`_shape`)."""
    reserved: list[ReservedPlace] = field(default_factory=list)
    """Places of heads that have waited for long."""
    _plans: dict[tuple[str, str], LanePlan] = field(default_factory=dict)
    """By pool and lane."""
    _planned_price: float = 0.0
    """Price of a GPU-second in the plan of the last place."""
    _passed: set[str] = field(default_factory=set)
    """Actions that could not be granted at their place: later plans leave them out."""

    def places(self, pool: Pool, lane: Lane, action: ActionState) -> Iterator[Node]:
        """Yield the nodes for an action, the best first, with `action.units` and its numbers set to the chunk there.
        None if it does better to wait. O(chunks * resident engines of a node).
        """
        scaled = self.cluster.durations.scalable(action)
        if scaled is None or self.cluster.elastic.rule is None:
            action.units = self._fewest(pool, lane, action)
            yield from places(self.cluster, pool, lane, action, self.now)
            return
        nodes, reserves = self.cluster.nodes.of(pool, lane), self._reserves(lane, action)
        could_begin = self._could_begin(nodes, action, scaled)
        if not (reserves or could_begin or self._some_free(nodes, action, scaled)):
            self.full.add(_shape(pool, lane, action))
            return
        lane_plan, place = self._placed(pool, lane, action, scaled)
        if place is not None and place.begin_s > 0.0:
            if reserves:
                self._reserve(pool, lane, action, lane_plan.nodes[place.node], place.begin_s)
            if reserves or could_begin:
                self.waiting.add(action.request.id)
            return
        tried = list[int]()
        while place is not None:
            if self._is_free(lane_plan, place, action):
                action.units = {**action.work.units, action.resource: place.size}
                action.reported, self._planned_price = place.numbers, lane_plan.price
                yield lane_plan.nodes[place.node]
            self._plans.pop((pool.name, lane.name), None)  # it does not know of a grant on another node
            tried.append(place.node)
            call = lane_plan.call(action, scaled, self.cluster)
            accepted = [one and node not in tried for node, one in enumerate(call.accepted)]
            place = lane_plan.plan.now_on(call._replace(accepted=accepted), lane_plan.price)

    def is_full(self, pool: Pool, lane: Lane, action: ActionState) -> bool:
        """Return whether no place is free for an action, because there was none for one like it. O(1)."""
        return bool(self.full) and _shape(pool, lane, action) in self.full

    def granted(self, action: ActionState, node: Node) -> None:
        """Note that an action is granted at its place, before it takes it."""
        scaled, service = self.cluster.durations.scalable(action), action.work.service
        if scaled is None or not action.reported or self.cluster.elastic.rule != "priced":
            return
        resource, size, costs = node.resources[action.resource], action.granted_units, dict[int, float]()
        row = floats((resource.service_row(service),)).tolist()
        for other, seconds in zip(scaled.amounts, scaled.durations_s.tolist(), strict=True):
            at = SIZES.index(other) * ROW_COLUMNS if other in SIZES else 0
            if other in SIZES and row[at + of.ROW_SERVED]:
                costs[other] = seconds * (1.0 + self._planned_price * other / max(1.0, row[at + of.ROW_SLOTS]))
        restores = bool(resource.restores_on(size, action.use()))
        self.cluster.queues.pool(action.work.pool).restore_credits.granted(service, costs, size, restores=restores)

    def gave_up(self, pool: Pool, lane: Lane, action: ActionState) -> None:
        """Note that an action is not granted now. The next plan is made without one that was refused at its place."""
        if action.reported:
            self._passed.add(action.request.id)
            self._plans.pop((pool.name, lane.name), None)
        action.reported = ()
        action.units = self._fewest(pool, lane, action)  # those that it reserves, if it is a head

    def _fewest(self, pool: Pool, lane: Lane, action: ActionState) -> Mapping[str, int]:
        """Return the units of the fewest degree that a node of the lane could run."""
        return fewest_units(self.cluster, pool, lane, action) or action.work.units

    def _placed(
        self, pool: Pool, lane: Lane, action: ActionState, scaled: Scalable
    ) -> tuple[LanePlan, PlannedPlace | None]:
        """Return the plan and the place of an action in it."""
        key, name = (pool.name, lane.name), action.request.id
        if name == self.insisting:
            self._plans[key] = self._plan(pool, lane, [(action, scaled)])
        known = self._plans.get(key)
        if known is None or not known.plan.room:
            known = self._plans[key] = self._plan(pool, lane, self._first(pool, lane, action, scaled))
            if known.places.keys() == {name}:
                return known, known.places[name]
        if name not in known.places:
            known.places[name] = known.plan.append(known.call(action, scaled, self.cluster), known.price)
        if not self._is_free(known, known.places[name], action):  # other lanes were served meanwhile
            known = self._plans[key] = self._plan(pool, lane, [(action, scaled)])
        return known, known.places[name]

    def _reserves(self, lane: Lane, action: ActionState) -> bool:
        """Return whether an action reserves its place, also if no GPU is free: others may join engines meanwhile."""
        return self.now - action.queued_s >= self.cluster.swap_wait_s and action.request.id == lane.queue.head()

    def _reserve(self, pool: Pool, lane: Lane, action: ActionState, node: Node, begin_s: float) -> None:
        name = action.request.id
        place = ReservedPlace(name, (pool.name, lane.name), action.resource, node, self.now + begin_s)
        self.reserved = [*(one for one in self.reserved if one.head != name), place]

    def forbids(self, node: Node, action: ActionState) -> bool:
        """Return whether this work, started there now, would delay a head that has reserved its place."""
        return any(one.node is node and self._delays(one, action) for one in self.reserved)

    def _delays(self, place: ReservedPlace, action: ActionState) -> bool:
        if place.head == action.request.id or not action.needs.get(place.resource):
            return False
        known = self._plans.get(place.lane)
        if known is not None and place.head in known.places and action.request.id in known.places:
            return False  # planned behind it
        return action.begins_s(place.node, self.now) + self.cluster.durations.expect_at_most(action) > place.begin_s

    def waits_for_calls(self, pool: Pool, lane: Lane, action: str) -> bool:
        """Return whether an action waits because of other calls, and not for busy engines only."""
        known = self._plans.get((pool.name, lane.name))
        return action in self.waiting and (known is None or known.first != action)

    @staticmethod
    def _some_free(nodes: Iterable[Node], action: ActionState, scaled: Scalable) -> bool:
        """Return whether a node that serves the model has enough free GPUs for the fewest. O(nodes)."""
        least, resource = scaled.amounts[0], action.resource
        return any(node.free(resource) >= least and action.could_run_on(node) for node in nodes)

    @staticmethod
    def _could_begin(nodes: Iterable[Node], action: ActionState, scaled: Scalable) -> bool:
        """Return whether a place is free for an action. O(nodes * degrees)."""
        use = action.use()
        for node in nodes:
            resource = node.resources.get(action.resource)
            if resource is not None and any(resource.fits(units, use) for units in scaled.amounts):
                return True
        return False

    def _is_free(self, known: LanePlan, place: PlannedPlace | None, action: ActionState) -> bool:
        """Return whether a place is as it was planned: free, and usable for the action."""
        if place is None or place.begin_s > 0.0:
            return True
        units = {**action.work.units, action.resource: place.size}
        return known.nodes[place.node].has_free(units, Use(action.work.service, 0.0, place.numbers))

    def _first(
        self, pool: Pool, lane: Lane, action: ActionState, scaled: Scalable
    ) -> list[tuple[ActionState, Scalable]]:
        """Return the actions that are planned together: all that wait in the lane, or this one alone."""
        nodes = self.cluster.nodes.of(pool, lane)
        if not 2 <= pool.queued <= MOST_PLANNED or len(nodes) > MOST_GPUS:
            return [(action, scaled)]
        if sum(node.capacity.get(pool.resource, 0) for node in nodes) > MOST_GPUS:
            return [(action, scaled)]
        head = lane.queue.head()
        found = list[tuple[ActionState, Scalable]]()
        for name in (*(() if head is None else (head,)), *behind_head(lane)):
            other = self.cluster.queues.queued[name]
            if name == action.request.id:
                found.append((action, scaled))
            elif other.scales and other.work.service and not other.work.quotas and name not in self._passed:
                known = self.cluster.durations.scalable(other)
                if known is not None:
                    found.append((other, known))
        return found

    def _plan(self, pool: Pool, lane: Lane, actions: list[tuple[ActionState, Scalable]]) -> LanePlan:
        nodes, records, owned, busy = list[Node](), list[EngineRecords](), 0, 0
        for node in self.cluster.nodes.of(pool, lane):
            resource = node.resources.get(pool.resource)
            one = None if resource is None else resource.engine_records()
            if one is not None and one.gpus:
                nodes.append(node)
                records.append(one)
                owned += one.owned
                busy += one.busy
        each = self._price(owned, busy, pool.queued - len(actions))
        made = LanePlan(nodes, EnginePlan(records, self.now, len(actions)), each)
        young = list[tuple[ActionState, Scalable]]()
        for action, scaled in actions:
            if len(actions) > 1 and self.now - action.queued_s < self.cluster.swap_wait_s:
                young.append((action, scaled))
            else:
                made.first = made.first or action.request.id
                call = made.call(action, scaled, self.cluster)
                made.places[action.request.id] = made.plan.append(call, made.price)
        if young:
            found = made.plan.search([made.call(*one, self.cluster) for one in young], made.price)
            if found is not None:  # else they are added one by one
                made.places |= {action.request.id: place for (action, _), place in zip(young, found, strict=True)}
        return made

    def _price(self, owned: int, busy: int, behind: int) -> float:
        """Return what a GPU-second costs calls that are not in the plan: those behind it, and those that arrive."""
        owned, behind = max(1, owned), max(0, behind)
        return price(min(busy, owned), owned, behind) if self.cluster.elastic.rule == "priced" else behind / owned


def _shape(pool: Pool, lane: Lane, action: ActionState) -> tuple[object, ...]:
    """Return what decides whether a place is free for an elastic call now: its duration does not."""
    work = action.work
    return pool.name, lane.node, work.kind, work.service, work.amounts


def sharers(node: Node, action: ActionState) -> int:
    """Return how many calls an engine executes if this one starts there now: its tenant is charged for a part of the
    GPUs. 1 for work without a model service. O(1) after the choice of a place.
    """
    chunks = node.resources.get(action.resource) if action.work.service else None
    if not isinstance(chunks, Chunks):
        return 1
    use = action.use()
    choice = chunks.choose(action.granted_units, use.service, use.numbers)
    busy = None if choice is None else chunks.busy.get(choice.chunk)
    return 1 if busy is None else len(busy.holders) + 1
