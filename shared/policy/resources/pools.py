"""One pool's waiting work: order, reservation for the head, backfill behind it (architecture §3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from shared.policy.order.lanes import Lane
from shared.policy.resources.ledger import Node

ZeroQueue = Literal["off", "on", "blocked"]
"""The rule that serves while no planner does. `blocked`: it is on, and the head of the queue does not fit."""

BACKFILL_DEPTH = 64
"""How far behind a head that does not fit the queue is searched for work that may pass it."""


@dataclass(slots=True)
class Demand:
    """Units wanted right now, and lately: what shrinks by this does not flap."""

    units: int = 0
    """Of what is queued or granted."""
    peak: int = 0
    """Largest `units` of the current and the last linger window: keeps units warm between calls."""
    window: tuple[int, int] = (0, 0)
    """Peaks of the last and of the current window."""

    def note(self, units: int) -> None:
        """Work has come (+) or gone (-)."""
        self.units += units
        assert self.units >= 0, "more work has gone than came"
        last, current = self.window
        if self.units > current:
            self.window = (last, self.units)
            self.peak = max(last, self.units)

    def next_window(self) -> None:
        """A linger window is over."""
        self.window = (self.window[1], self.units)
        self.peak = max(self.window)


BEGINS = "begins"
"""The lane of what begins environments. No node is called so where it matters: nodes' lanes are `=<name>`."""


@dataclass(slots=True)
class Pool(Lane):
    """(resource, node class): what stages draw their units from. It is itself the lane of what any node may take."""

    lanes: dict[str, Lane] = field(default_factory=dict)
    """Beside its own: `begins`, and `=<node>`. Made at first sight, removed when empty."""
    resource: str = field(init=False)
    node_class: str = field(init=False)
    target: int | None = None
    """Units the planner wants; None until it has spoken: then everything there is."""
    settled: tuple[object, ...] | None = None
    """What the nodes' shares were computed for, if they add up to it; None when they must be spread anew."""
    queued_s: float = 0.0
    """Expected unit-seconds of all that waits, but for rounding."""
    outside: Demand = field(default_factory=Demand)
    """Of work outside any batch; the planner cannot foresee it."""
    demand: Demand = field(default_factory=Demand)
    """Of all work."""

    def __post_init__(self) -> None:
        self.resource, _, self.node_class = self.name.partition("@")

    def lane(self, node: str | None) -> Lane:
        """The lane of what is bound to a node; None: of what begins an environment on one."""
        name = BEGINS if node is None else f"={node}"
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name, node or "")
        return lane

    def all_lanes(self) -> Iterator[Lane]:
        """Its own first."""
        yield self
        yield from self.lanes.values()

    def note(self, units: int, *, outside: bool) -> None:
        """Work has come (+) or gone (-); `outside`: of any batch."""
        self.demand.note(units)
        if outside:
            self.outside.note(units)

    def next_window(self) -> None:
        """A linger window is over."""
        self.demand.next_window()
        self.outside.next_window()

    def wanted(self, nodes: Iterable[Node], head_units: int, zero_queue: ZeroQueue = "off") -> int:
        """Units this pool's nodes shall own together.

        The planner's target, plus what comes unforeseen, and never less than the head of the queue needs, so that a
        wrong planner delays but never starves. While it is silent, also all that is queued or granted takes; and all
        there is where that is not enough for the head, because nothing shall queue for want of a target.
        """
        capacity = sum(node.capacity.get(self.resource, 0) for node in nodes)
        if self.target is None or zero_queue == "blocked":
            return capacity
        least = self.demand.peak if zero_queue == "on" else 0
        return min(capacity, max(self.target + self.outside.peak, least, head_units))


def reserve(
    now: float, needed: Mapping[str, int], free: Mapping[str, int], ends: Iterable[tuple[float, Mapping[str, int]]]
) -> float:
    """When the needed units are predicted to be free together: absolute seconds; infinity when never.

    Args:
        now: absolute seconds.
        needed: resource -> units the head of the queue takes.
        free: resource -> units free now, for every resource needed.
        ends: (predicted end, its units) of what runs. What should have ended before now is taken to end now.
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
