"""Optimality gap of Algorithm 1 and of the trade after it, over small random cases.

The paper states "near-optimal" (DistRS §5.1). Small cases can be searched exhaustively, so the gap is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from shared.policy.scaling.search import UNREACHED, BatchRecord, ExpectedBatch, Plan, Stage, repeating, search, simulate

STRICTNESS = (0.0, 1.0)
COSTS = (4.0, 5.0, 6.0)
"""Costs of a stage's worker. They are close, because then the order of Algorithm 1 is most often wrong."""
LONGEST_S = 12
ARRIVING_S = 6
MOST_DELAY_S = 24
"""Executions, arrivals of a batch and D are whole seconds up to these: requests arrive faster than they are served, and
may queue."""
MOST_REQUESTS = 6
"""Requests of both batches together. As many units of a pool are enough, so there are at most 6^3 allocations."""


@dataclass(frozen=True)
class Excess:
    """Excess cost of one search over the cheapest allocation, relative to its cost."""

    mean: float
    worst: float
    optimal: float
    """Share of the cases in which it found the cheapest."""
    infeasible: int
    """Infeasible plans; none is expected."""


@dataclass(frozen=True)
class Gap:
    """Both searches over the same cases."""

    cases: int
    sequential: Excess
    """Algorithm 1."""
    traded: Excess
    """With the trade after it."""


def gap(seed: int, cases: int) -> Gap:
    """Return the excess of both searches over seeded random cases, half of them with the timeout-aware rule.

    About 4 ms a case.

    Raises:
        ValueError: there are no cases.
    """
    if cases < 1:
        raise ValueError("the gap needs at least one case")
    chance = Random(seed)
    plans: tuple[list[Plan], list[Plan]] = ([], [])
    excesses: tuple[list[float], list[float]] = ([], [])
    for number in range(cases):
        batches, strictness = _case(chance), STRICTNESS[number % 2]
        costs = _unit_costs(batches)
        cheapest = _cheapest(batches, costs, strictness)
        for trade in (False, True):
            plan = search(batches, dict.fromkeys(costs, MOST_REQUESTS), strictness=strictness, trade=trade)
            plans[trade].append(plan)
            excesses[trade].append(sum(plan.units[pool] * each for pool, each in costs.items()) / cheapest - 1.0)
    return Gap(cases, _excess(plans[False], excesses[False]), _excess(plans[True], excesses[True]))


def _excess(plans: Sequence[Plan], excesses: Sequence[float]) -> Excess:
    return Excess(
        mean=sum(excesses) / len(excesses),
        worst=max(excesses),
        optimal=sum(excess < 1e-9 for excess in excesses) / len(excesses),
        infeasible=sum(not plan.outcome.feasible for plan in plans),
    )


def _case(chance: Random) -> list[ExpectedBatch]:
    """One or two batches of one workflow of two or three stages, each with a pool of its own; whole seconds."""
    stages = tuple(
        Stage(f"s{number}", chance.choice(COSTS), float(LONGEST_S)) for number in range(chance.randint(2, 3))
    )
    count = chance.randint(1, 2)
    return [
        repeating(
            f"b{number}",
            stages,
            _record(chance, len(stages), chance.randint(2, MOST_REQUESTS // count)),
            float(chance.randint(0, MOST_DELAY_S)),
            float(chance.randint(0, ARRIVING_S)),
        )
        for number in range(count)
    ]


def _record(chance: Random, stages: int, size: int) -> BatchRecord:
    """Three requests in four go through all stages."""
    arrivals = sorted(chance.randint(0, ARRIVING_S) for _ in range(size))
    reached = [stages if chance.random() < 0.75 else chance.randint(1, stages) for _ in range(size)]
    return BatchRecord(
        tuple(float(arrival - arrivals[0]) for arrival in arrivals),
        tuple(
            tuple(float(chance.randint(1, LONGEST_S)) if stage < last else UNREACHED for last in reached)
            for stage in range(stages)
        ),
    )


def _unit_costs(batches: Sequence[ExpectedBatch]) -> dict[str, float]:
    return {stage.drawn_from: stage.worker_cost for batch in batches for stage in batch.stages}


def _cheapest(batches: Sequence[ExpectedBatch], costs: dict[str, float], strictness: float) -> float:
    """Return the cost of the cheapest feasible allocation, with a worker of every stage."""
    allocations = sorted(
        product(range(1, MOST_REQUESTS + 1), repeat=len(costs)),
        key=lambda counts: sum(count * each for count, each in zip(counts, costs.values(), strict=True)),
    )
    for counts in allocations:
        if simulate(batches, dict(zip(costs, counts, strict=True)), strictness=strictness).feasible:
            return sum(count * each for count, each in zip(counts, costs.values(), strict=True))
    raise AssertionError("as many units as requests are feasible")
