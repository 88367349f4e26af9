"""Elastic scheduling of one node's units of one resource: which actions start now, and on how many (ARL-Tangram §4.2).

Law: all candidates fit at their fewest units. The last ones may be evicted so that those before them get more, as long
as each eviction shortens the objective: the durations of the remaining candidates, plus start + duration of all waiting
actions, by list scheduling at the fewest units, the evicted ones first (Algorithms 1 and 2). The order never changes,
no more than the free units is granted, and the first evicted action does not fit into the rest.

Corrected here (docs/algorithms/elastic.md): Algorithm 2 pops from `heap` and pushes on `tmpHeap`, so no waiting action
ever delays another; its `getDur(d)` takes the number of a try for a number of units; its inner loop runs from 1 to |C|,
one too far; an action takes one entry of the heap, however many units it needs; and it fails if nothing waits.

Added here is the rule `priced`. The paper's objective includes waiting actions, but not those that arrive soon, so a
lone action takes 32 units for no gain. A price on unit-seconds represents future arrivals. The paper's rule can be
selected.

Figures of a decision, on one core: 0.1 ms with 16 units free of 256 and 256 waiting; 0.3 ms for 256 candidates, 256
free units and 1,000 waiting, 1.3 ms if amounts are not consecutive, 2.2 ms if half of them are evicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from shared.policy.elastic import arrange, structured
from shared.policy.elastic.eviction import Counts, Floats, Rows, evict
from shared.policy.resources.resource import Counted, Operator

LOOKED_AT: Final = 64
"""Waiting actions that are placed one by one; those behind them count as a fluid (`eviction.fluid_starts_s`).

With 64 to 600 waiting, half of them long, the objective is 0.02 % above that of placing all one by one, 0.5 % at worst.
"""

Rule = Literal["paper", "priced"]


@dataclass(frozen=True, slots=True)
class ElasticRules:
    """Rules for units beyond the fewest."""

    rule: Rule | None = "priced"
    """None: no elastic grants."""
    waits_for_units: bool = True
    """An elastic action waits if more units will be free so soon that it ends earlier (`enough`)."""
    depth: int = 2
    """Amounts that the first waiting action tries in estimates (§4.2)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scalable:
    """An action as its key resource sees it. Created once for an action, read by many decisions."""

    amounts: tuple[int, ...]
    """Allowed units, ascending; the first is the fewest."""
    durations_s: Floats
    """Seconds on each of them."""
    units: Counts = field(init=False, repr=False)
    """`amounts` as an array."""
    work_s: float = field(init=False, repr=False)
    """Unit-seconds it takes on the fewest units."""

    def __post_init__(self) -> None:
        units = np.array(self.amounts, np.int64)
        if not len(units) or units[0] < 1 or (units[1:] <= units[:-1]).any():
            raise ValueError(f"amounts must ascend from one or more: {self.amounts}")
        if self.durations_s.shape != units.shape or not (self.durations_s >= 0).all():
            raise ValueError(f"each amount needs a duration: {self.amounts}, {self.durations_s}")
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "work_s", float(units[0] * self.durations_s[0]))

    def times(self, factor: float, most_s: float) -> Scalable:
        """The same shape, scaled by `factor`, `most_s` at most. A third of the cost of a new one: no checks are needed.

        Args:
            factor: >= 0.
            most_s: >= 0.
        """
        durations_s = np.minimum(self.durations_s * factor, most_s)
        one = object.__new__(Scalable)
        for name, value in (("amounts", self.amounts), ("durations_s", durations_s), ("units", self.units)):
            object.__setattr__(one, name, value)
        object.__setattr__(one, "work_s", self.amounts[0] * float(durations_s[0]))
        return one


def allot(
    candidates: Sequence[Scalable],
    free: int | Operator,
    waiting: Sequence[Scalable],
    busy_until_s: Sequence[float] | Floats,
    *,
    evictable: int,
    depth: int = 2,
    rule: Rule = "priced",
) -> tuple[int, ...]:
    """Return the units of each candidate that starts now. If shorter than `candidates`, the last ones are evicted.

    Args:
        candidates: in order; all of them fit at their fewest units.
        free: units to share; an operator for units with structure (`Resource.states`).
        waiting: actions behind them, in order.
        busy_until_s: for each unit that is not free, seconds until it is predicted to be; overdue ones count as 0.
        evictable: most candidates that may be evicted; the first never is.
        depth: number of its amounts that the first waiting action tries in the estimate (the paper: 2 or 3).
        rule: whether units have a price.

    Raises:
        ValueError: the candidates do not fit.

    Among equal gains, the first candidate gets the unit. Oracle: tests/shared/policy/elastic/elastic_oracle.py.
    """
    count = free if isinstance(free, int) else free.units
    spare = count - sum(one.amounts[0] for one in candidates)
    if spare < 0:
        raise ValueError(f"at their fewest units the candidates need {-spare} more than the {count} that are free")
    if not candidates:
        return ()
    owned = count + len(busy_until_s)
    looked_at = [one for one in waiting[:LOOKED_AT] if one.amounts[0] <= owned]  # others never start here
    beyond = [one.work_s for one in waiting[LOOKED_AT:] if one.amounts[0] <= owned]
    rows = _rows([*candidates, *looked_at], price(owned - spare, owned) if rule == "priced" else 0.0)
    busy_s = np.array(busy_until_s, np.float64)  # a copy: loops are compiled for plain arrays
    evictable, depth = max(0, min(evictable, len(candidates) - 1)), max(1, depth)
    fluid = (len(beyond), float(sum(beyond)))
    if isinstance(free, int | Counted):
        return evict(rows, len(candidates), spare, busy_s, evictable=evictable, depth=depth, beyond=fluid)[0]
    return structured.evict(rows, len(candidates), free, busy_s, evictable=evictable, depth=depth, beyond=fluid)[0]


def price(busy: int, owned: int, behind: int = 0) -> float:
    """Seconds by which a unit held for one second delays actions that wait and future ones.

    One unit-second more in every second raises the load by 1 / owned. Actions that share units elastically are like a
    processor-sharing queue: at load r, r / (1 - r) of them are present, whatever the distribution of their durations.
    By Little's law that is also the time they spend here per second, so a unit-second costs its derivative, 1 / (1 -
    r)^2, over `owned`. The load is estimated by the share of busy units. Random variation changes that by about 1 /
    sqrt(owned), so loads nearer to 1 are not known. Therefore the price is at most 1: then a unit must save a second
    for each second it is held.

    A queue adds to that: one unit-second delays each action in it by 1 / owned, and those that arrive before it is
    empty, too. It shrinks by the share (1 - r) of what is served, so they are 1 / (1 - r) times as many.

    Args:
        busy: busy units, with starting actions at their fewest.
        owned: all units of the node.
        behind: actions that wait for these units.
    """
    idle = max(1.0 - busy / owned, 1.0 / math.sqrt(owned))
    return (1.0 / idle + behind) / (idle * owned)


def enough(head: Scalable, free: int, busy_until_s: Sequence[float]) -> int:
    """Return the number of units that the head of a queue should wait for; if they are free it need not wait.

    Work that starts on the last free unit keeps one unit to its end, though many might be free soon. So the result is
    the amount with the least wait + priced duration. This precedes Algorithm 1, which starts everything that fits: the
    caller may hold the head as if that were its fewest amount. The head does not wait forever, because units only
    become free as long as nothing overtakes it.
    """
    starts_s = [0.0] * free + sorted(max(0.0, end_s) for end_s in busy_until_s)
    owned = len(starts_s)
    if head.amounts[0] > owned:
        return head.amounts[0]
    each = price(min(owned, len(busy_until_s) + head.amounts[0]), owned)
    best, least_s = head.amounts[0], math.inf
    for units, lasts_s in zip(head.amounts, head.durations_s.tolist(), strict=True):
        if units > owned:
            break
        end_s = starts_s[units - 1] + lasts_s * (1.0 + each * units)
        if end_s < least_s:
            best, least_s = units, end_s
    return best


class KnownWait(NamedTuple):
    """Units of a node that an action waits for. It holds while the node does not change."""

    durations: Scalable
    """The action's durations, of which that number of units follows."""
    units: int
    until_s: float
    """Next time at which one of the node's units is predicted free."""


def warm() -> None:
    """Compile the loops of a decision: seconds if nothing is cached on disk, else almost no time."""
    arrange.warm()
    one = Scalable((1, 2), np.array([2.0, 1.0]))
    allot([one, one], 3, [one], [1.0], evictable=1)


def _rows(actions: Sequence[Scalable], price: float) -> Rows:
    units = np.concatenate([one.units for one in actions])
    lasts_s = np.concatenate([one.durations_s for one in actions])
    firsts = np.zeros(len(actions) + 1, np.int64)
    np.cumsum([len(one.amounts) for one in actions], out=firsts[1:])
    return Rows(units, lasts_s, lasts_s * (1.0 + price * units), firsts)
