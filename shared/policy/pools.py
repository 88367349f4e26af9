"""One pool's waiting work: order, reservation for the head, backfill behind it (architecture §3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shared.policy.ledger import Node
from shared.policy.tenants import FairQueue

BACKFILL_DEPTH = 64
"""How far behind a head that does not fit the queue is searched for work that may pass it."""


@dataclass(slots=True)
class Pool:
    """(resource, node class): what stages draw their units from."""

    name: str
    queue: FairQueue = field(default_factory=FairQueue)
    parked: set[str] = field(default_factory=set)
    """Waiting actions that no node of the pool could ever take; they come back to the queue when nodes change."""
    resource: str = field(init=False)
    node_class: str = field(init=False)
    target: int | None = None
    """Units the planner wants; None until it has spoken: then everything there is."""
    settled: tuple[object, ...] | None = None
    """What the nodes' shares were computed for, if they add up to it; None when they must be spread anew."""
    feasible: str = ""
    """The head that some node is known to be able to take one day."""
    queued_s: float = 0.0
    """Expected unit-seconds of all that waits, but for rounding."""
    outside: int = 0
    """Units wanted right now by work outside any batch, queued or granted; the planner cannot foresee it."""
    outside_peak: int = 0
    """Largest `outside` of the current and the last linger window: keeps units warm between calls."""
    outside_window: tuple[int, int] = (0, 0)
    """Peaks of the last and of the current window."""

    def __post_init__(self) -> None:
        self.resource, _, self.node_class = self.name.partition("@")

    def note_outside(self, units: int) -> None:
        """Work outside any batch has come (+) or gone (-)."""
        self.outside += units
        assert self.outside >= 0, f"{self.name}: more work outside batches has gone than came"
        last, current = self.outside_window
        self.outside_window = (last, max(current, self.outside))
        self.outside_peak = max(self.outside_window)

    def next_window(self) -> None:
        """A linger window is over."""
        self.outside_window = (self.outside_window[1], self.outside)
        self.outside_peak = max(self.outside_window)

    def wanted(self, nodes: Iterable[Node], head_units: int) -> int:
        """Units this pool's nodes shall own together.

        The planner's target, plus what comes unforeseen, and never less than the head of the queue needs, so that a
        wrong or a silent planner delays but never starves.
        """
        capacity = sum(node.capacity.get(self.resource, 0) for node in nodes)
        if self.target is None:
            return capacity
        return min(capacity, max(self.target + self.outside_peak, head_units))


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
