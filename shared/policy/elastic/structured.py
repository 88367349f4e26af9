"""Greedy eviction over the states of a resource with structure (ARL-Tangram Algorithms 1 and 3).

The same decisions as `eviction.evict`, whose loops are compiled for plain counts. Here the resource's operator says
which units may be taken together, so the exact DP runs in plain Python. The completion heap behind the candidates
counts units without their structure, as in the paper.
"""

from __future__ import annotations

import math

import numpy as np

from shared.policy.elastic.arrange import Arrangement, Choices, arrange
from shared.policy.elastic.eviction import TOLERANCE_S, Floats, Rows, queue_cost_s
from shared.policy.resources.resource import Operator


def evict(
    rows: Rows, count: int, operator: Operator, busy_s: Floats, *, evictable: int, depth: int, beyond: tuple[int, float]
) -> tuple[tuple[int, ...], float]:
    """Return the units of each candidate that is kept, and the objective of keeping them.

    Whoever applies them takes the last candidate's first: that is the order of the DP. If the operator cannot give all
    candidates their fewest in that order, it may evict the last ones.

    Args:
        rows: the candidates, then the waiting actions that are placed one by one.
        count: number of candidates.
        operator: states of the units that the candidates share.
        busy_s: for each unit that is not free, seconds until it is.
        evictable: most candidates that may be evicted; less than all.
        depth: number of its amounts that the first in the queue tries.
        beyond: number of waiting actions behind the rows, and their unit-seconds.
    """
    choices = [
        Choices(rows.units[first:past].tolist(), rows.costs[first:past].tolist())
        for first, past in zip(rows.firsts[:count], rows.firsts[1 : count + 1], strict=True)
    ]
    fewest = tuple(one.amounts[0] for one in choices)
    table = arrange(choices, operator)
    decided, objective_s = fewest, math.inf
    for kept in range(count, count - evictable - 1, -1):
        if table.cost(kept) == math.inf:
            continue
        units = table.units(kept)
        if kept < count and operator.left(_left(table, units), fewest[kept]) is not None:
            break  # useless: the evicted action would fit
        more = np.array([one.amounts.index(amount) for one, amount in zip(choices, units, strict=False)], np.int64)
        total_s = table.cost(kept)
        enough_s = objective_s - TOLERANCE_S - total_s
        spare = operator.units - sum(units)
        total_s += queue_cost_s(rows, more, spare, busy_s, depth=depth, beyond=beyond, enough_s=enough_s)
        if total_s >= objective_s - TOLERANCE_S:
            break
        decided, objective_s = units, total_s
    return decided, objective_s


def _left(table: Arrangement, units: tuple[int, ...]) -> int:
    """State that is left after these units were taken, the last first."""
    state = table.operator.states - 1
    for amount in reversed(units):
        following = table.operator.left(state, amount)
        assert following is not None, "what was chosen could be given"
        state = following
    return state
