"""Oracle of elastic scheduling: tries every split, keeps units as a sorted list. And strategies for its actions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from shared.policy.elastic.scheduling import Scalable
from shared.policy.model.elasticity import Elasticity

Amounts = tuple[int, ...]


def splits(amounts: Sequence[Amounts], free: int) -> list[Amounts]:
    """Every choice of one amount for each."""
    return [split for split in itertools.product(*amounts) if sum(split) <= free]


def cost_s(actions: Sequence[Scalable], split: Sequence[int], price: float = 0.0) -> float:
    """Cost on these units each."""
    return sum(lasts_s(one, units) * (1 + price * units) for one, units in zip(actions, split, strict=True))


def cheapest_s(actions: Sequence[Scalable], free: int, price: float = 0.0) -> float:
    found = splits([one.amounts for one in actions], free)
    return min((cost_s(actions, split, price) for split in found), default=math.inf)


def lasts_s(action: Scalable, units: int) -> float:
    return float(action.durations_s[action.amounts.index(units)])


def queued_s(unit_free_s: Sequence[float], queue: Sequence[Scalable], depth: int, price: float) -> float:
    """Start + cost of all in the queue: each takes the units that are free first; the first one tries amounts."""
    if not queue:
        return 0.0
    totals = []
    for first in queue[0].amounts[:depth]:
        if first <= len(unit_free_s):
            units_of = [first, *(one.amounts[0] for one in queue[1:])]
            ends, total = sorted(unit_free_s), cost_s(queue, units_of, price)
            for action, units in zip(queue, units_of, strict=True):
                start = ends[units - 1]
                ends = sorted(ends[units:] + [start + lasts_s(action, units)] * units)
                total += start
            totals.append(total)
    return min(totals)


def objective_s(
    candidates: Sequence[Scalable],
    split: Sequence[int],
    waiting: Sequence[Scalable],
    free: int,
    busy_until_s: Sequence[float],
    depth: int,
    price: float = 0.0,
) -> float:
    """Objective of Algorithm 1 if the first candidates have these units and the others are evicted."""
    kept = candidates[: len(split)]
    ends = [0.0] * (free - sum(split)) + [max(0.0, until) for until in busy_until_s]
    for one, units in zip(kept, split, strict=True):
        ends += [lasts_s(one, units)] * units
    queue = [one for one in [*candidates[len(split) :], *waiting] if one.amounts[0] <= len(ends)]
    return cost_s(kept, split, price) + queued_s(ends, queue, depth, price)


def allot_slowly(
    candidates: Sequence[Scalable],
    free: int,
    waiting: Sequence[Scalable],
    busy_until_s: Sequence[float],
    evictable: int,
    depth: int,
) -> Amounts:
    """Algorithm 1 by the paper's rule. Exact only where durations are whole: of equals later ones get fewer units."""
    decided, best = tuple[int, ...](), math.inf
    for kept in range(len(candidates), max(0, len(candidates) - evictable - 1), -1):
        found = splits([one.amounts for one in candidates[:kept]], free)
        split = min(found, key=lambda some: (cost_s(candidates[: len(some)], some), some[::-1]))
        if kept < len(candidates) and free - sum(split) >= candidates[kept].amounts[0]:
            break
        objective = objective_s(candidates, split, waiting, free, busy_until_s, depth)
        if objective >= best:
            break
        decided, best = split, objective
    return decided


# ---- actions -------------------------------------------------------------------------------------------------------


def scalable(amounts: Sequence[int], single_s: float, elasticity: Elasticity) -> Scalable:
    return Scalable(tuple(amounts), np.array([elasticity.duration(single_s, units) for units in amounts]))


@st.composite
def amounts(draw: st.DrawFn, most: int = 8) -> Amounts:
    """A single amount, a range, powers of two, or any set."""
    low = draw(st.integers(1, most // 2))
    some = st.one_of(
        st.just((low,)),
        st.integers(low, most).map(lambda high: tuple(range(low, high + 1))),
        st.sampled_from([(1, 2, 4, 8), (2, 4, 8), (1, 4), (3, 8)]),
        st.sets(st.integers(1, most), min_size=1).map(lambda allowed: tuple(sorted(allowed))),
    )
    return draw(some)


elasticities = st.one_of(
    st.floats(0, 1).map(lambda serial: Elasticity("amdahl", serial=serial)),
    st.floats(0, 1).map(lambda exponent: Elasticity("power", exponent=exponent)),
)


@st.composite
def modelled(draw: st.DrawFn) -> Scalable:
    return scalable(draw(amounts()), float(draw(st.integers(1, 60))), draw(elasticities))


@st.composite
def concave(draw: st.DrawFn) -> Scalable:
    """Ranges in which each unit gains no more than the one before; whole seconds."""
    gains = sorted(draw(st.lists(st.integers(0, 9), max_size=6)), reverse=True)
    durations = itertools.accumulate([float(sum(gains) + draw(st.integers(0, 9))), *(-gain for gain in gains)])
    low = draw(st.integers(1, 3))
    return Scalable(tuple(range(low, low + len(gains) + 1)), np.array(list(durations)))


@st.composite
def lawless(draw: st.DrawFn) -> Scalable:
    """Arbitrary whole seconds; more units may even take longer."""
    allowed = draw(amounts())
    return Scalable(allowed, np.array([float(draw(st.integers(0, 20))) for _ in allowed]))
