"""Pools and their lanes: waiting work in its order, actions set aside, and units in demand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from shared.policy.model.formulation import Work
from shared.policy.order.tenants import FairQueue
from shared.policy.resources.ledger import Node
from shared.policy.resources.quota_demand import QuotaDemand
from shared.policy.resources.restore_credits import RestoreCredits

ZeroQueue = Literal["off", "on", "blocked"]
"""Rule that applies while no planner is alive. `blocked`: it is on, and the head of the queue does not fit."""

BACKFILL_DEPTH = 64
"""Depth to which the queue is searched for backfill behind a head that does not fit."""


@dataclass(slots=True)
class Demand:
    """Units in demand, now and recently. The recent peak keeps shares from changing with each call."""

    units: int = 0
    """Units of queued and granted work."""
    peak: int = 0
    """Largest `units` of the current and the last linger window: keeps units warm between calls."""
    window: tuple[int, int] = (0, 0)
    """Peaks of the last and of the present window."""

    def add(self, units: int) -> None:
        """Add work (+) or remove it (-)."""
        self.units += units
        assert self.units >= 0, "demand is negative"
        last, current = self.window
        if self.units > current:
            self.window = (last, self.units)
            self.peak = max(last, self.units)

    def next_window(self) -> None:
        """Start a new linger window."""
        self.window = (self.window[1], self.units)
        self.peak = max(self.window)


@dataclass(slots=True)
class Lane:
    """Waiting work for the same nodes of a pool: one lane for all nodes, and one for each node that work is bound to.

    Work that begins an environment also has its own lane: if memory is short, nothing else waits behind it. For the
    same reason, work that takes quotas has a lane for each set of them.
    """

    name: str
    node: str = ""
    """The only node that can run it; empty: any of the pool's."""
    queue: FairQueue = field(default_factory=FairQueue)
    stuck: set[str] = field(default_factory=set)
    """Waiting actions that no node of the lane could ever take; queued again when nodes change."""
    behind: set[str] = field(default_factory=set)
    """Waiting actions behind an earlier one of their trajectory; queued when that is answered."""
    postponed: dict[str, float] = field(default_factory=dict)
    """Postponed actions -> time at which they are queued again."""
    withdrawn: set[str] = field(default_factory=set)
    """Waiting actions of batches that are being cancelled; never queued again."""
    number: int = 0
    """Order of creation among the lanes of its pool; for a pool, among all pools."""
    feasible: str = ""
    """Head that some node is known to be able to take eventually."""
    far_at_s: float = 0.0
    """Time from which a round may walk beyond `BACKFILL_DEPTH` again, for calls of other model services."""
    alike: tuple[Work, tuple[str, str, str]] | None = None
    """Work of all actions in its order, and key of their durations, if all need the same; None: they may differ."""
    shared: str = ""
    """Quota by whose weights, and by whose amounts, tenants take turns in this lane; empty: by unit-seconds."""

    def pushed(self, like: tuple[Work, tuple[str, str, str]] | None) -> None:
        """Note what an action that was pushed to its order is like; None: like no other one."""
        known = like if len(self.queue) == 1 else self.alike
        same = like is not None and known is not None and like[0] is known[0] and like[1] == known[1]
        self.alike = known if same else None

    @property
    def waiting(self) -> int:
        """Number of actions."""
        return len(self.queue) + len(self.stuck) + len(self.behind) + len(self.postponed) + len(self.withdrawn)


BEGINS = "begins"
"""Name of the lane for actions that begin environments. No conflict with node lanes, which are named `=<name>`."""


def bound_lane(node: str) -> str:
    """Name of the lane for work that is bound to a node."""
    return f"={node}"


def quotas_lane(quotas: Collection[str]) -> str:
    """Name of the lane for work that takes these quotas and may run on any node."""
    return " ".join(["quotas", *(sorted(quotas) if len(quotas) > 1 else quotas)])


@dataclass(slots=True)
class Pool(Lane):
    """(resource, node class): the units that stages draw from. It is itself the lane of work that any node may take."""

    lanes: dict[str, Lane] = field(default_factory=dict)
    """Other lanes: `begins`, and `=<node>`. Created on first use, removed when empty."""
    resource: str = field(init=False)
    node_class: str = field(init=False)
    target: int | None = None
    """Target of the planner; None until the first one: then all units are owned."""
    chunk: int = 1
    """Units that the planned work needs together on one node."""
    settled: tuple[object, ...] | None = None
    """Inputs for which the nodes' shares were computed, if they add up; None if they must be computed again."""
    lanes_made: int = 0
    """Number of lanes created so far."""
    queued: int = 0
    """Number of actions that wait in its lanes, those set aside included."""
    queued_s: float = 0.0
    """Expected unit-seconds of everything that waits, except for rounding errors."""
    outside: Demand = field(default_factory=Demand)
    """Demand of work outside batches, which the planner cannot foresee."""
    demand: Demand = field(default_factory=Demand)
    """Demand of all work."""
    quota_demand: QuotaDemand = field(default_factory=QuotaDemand)
    """Waiting work that takes quotas. It is in neither demand before it is granted."""
    services: dict[str, int] = field(default_factory=dict)
    """Model service -> waiting actions that use it."""
    restore_credits: RestoreCredits = field(default_factory=RestoreCredits)
    """What calls of its model services have paid towards restores."""

    def __post_init__(self) -> None:
        self.resource, _, self.node_class = self.name.partition("@")

    def count_service(self, service: str, change: int) -> None:
        """Count a waiting action that uses a model service (+1), or its end (-1). Empty: it uses none."""
        if service:
            self.services[service] = self.services.get(service, 0) + change
            if not self.services[service]:
                del self.services[service]

    def lane(
        self,
        node: str | None,
        quotas: Collection[str] = (),
        shared: str = "",
        weights: Mapping[str, float] | None = None,
    ) -> Lane:
        """Return the lane of work bound to a node; None: of actions that begin an environment. `quotas`: of work that
        takes these and may run on any node; `shared`: that of them whose weights apply if the lane is new.
        """
        name = BEGINS if node is None else bound_lane(node)
        if quotas:
            name, node = quotas_lane(quotas), ""
        lane = self.lanes.get(name)
        if lane is None:
            queue = FairQueue(self.queue.weights if weights is None else weights)
            lane = self.lanes[name] = Lane(name, node or "", queue, shared=shared)
            self.lanes_made += 1
            lane.number = self.lanes_made
        return lane

    def all_lanes(self) -> Iterator[Lane]:
        """All lanes, the pool's own first."""
        yield self
        yield from self.lanes.values()

    def add_demand(self, units: int, *, outside: bool) -> None:
        """Add work (+) or remove it (-); `outside`: it belongs to no batch."""
        self.demand.add(units)
        if outside:
            self.outside.add(units)

    def next_window(self) -> None:
        """Start a new linger window."""
        self.demand.next_window()
        self.outside.next_window()

    def wanted(
        self,
        nodes: Iterable[Node],
        head_units: int,
        zero_queue: ZeroQueue = "off",
        startable: tuple[int, int] = (0, 0),
    ) -> int:
        """Units that this pool's nodes must own together.

        The planner's target, plus the demand outside batches, and at least what the head of the queue needs. So a wrong
        planner delays work but never starves it. While no planner is alive, also all units that queued and granted work
        takes, and the whole capacity if that is not enough for the head. So no work queues because a target is missing.
        `startable`: units of the waiting work that its quotas let start now, and of that outside batches.
        """
        capacity = sum(node.capacity.get(self.resource, 0) for node in nodes)
        if self.target is None or zero_queue == "blocked":
            return capacity
        least = max(self.demand.peak, self.demand.units + startable[0]) if zero_queue == "on" else 0
        outside = max(self.outside.peak, self.outside.units + startable[1])
        return min(capacity, max(self.target + outside, least, head_units))


def reserve(
    now: float, needed: Mapping[str, int], free: Mapping[str, int], ends: Iterable[tuple[float, Mapping[str, int]]]
) -> float:
    """Return when the needed units are predicted to be free together: absolute seconds; infinity if never.

    Args:
        now: absolute seconds.
        needed: resource -> units the head of the queue takes.
        free: resource -> units free now, for every resource needed.
        ends: (predicted end, units) of running work. Overdue work is assumed to end now.
    """
    missing = {name: count - free[name] for name, count in needed.items() if count > free[name]}
    if not missing:
        return now
    for end, units in sorted(ends, key=lambda one: one[0]):
        for name in missing.keys() & units.keys():
            missing[name] -= units[name]
        if all(count <= 0 for count in missing.values()):
            return max(now, end)
    return float("inf")
