"""Pools of chunks: GPUs that model services share (ARL-Tangram §5.3, DistRS §5.1).

A stage of a model service needs a chunk: as many GPUs as it has units (its degree). One engine executes up to
`concurrency` requests of its service. Services take turns on the same GPUs (evict on execution), so one chunk is enough
for all of them to progress. Laws (tests/shared/policy/scaling/test_chunked_pools.py):
  - the least is the widest chunk that an outstanding request may still need;
  - the most is enough for each spread of the outstanding requests, and at most one chunk of each service more;
  - a target is a number of whole chunks, or all GPUs that the pool may hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.policy.scaling.workload import Stage

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PlannedService:
    """One model service of a pool, as its nodes report it."""

    degrees: tuple[int, ...]
    """Units that one engine of it may use."""
    concurrency: int = 1
    """Requests that one engine executes at the same time."""
    restore_s: float = 0.0
    """Measured seconds from owning a unit until an evicted engine serves on it; 0: not measured."""


Services = Mapping[str, PlannedService]
"""Model service of a pool -> what is known of it."""


def concurrency_of(stage: Stage, services: Services) -> int:
    """Return the requests of a stage that share one chunk."""
    known = services.get(stage.service)
    return 1 if known is None else max(1, known.concurrency)


def chunk_of(workflows: Iterable[Iterable[Stage]], pool: str) -> int:
    """Return the units of the widest chunk that stages of workflows need of a pool; 1 if they need none."""
    return max((stage.units for stages in workflows for stage in stages if stage.drawn_from == pool), default=1)


def whole_chunks(units: int, chunk: int, ceiling: int) -> int:
    """Round units up to whole chunks, but not beyond the ceiling."""
    return min(ceiling, math.ceil(units / chunk) * chunk)


def cold_start_of(stage: Stage, services: Mapping[str, Services], cold_start_s: Mapping[str, float]) -> float:
    """Return the seconds until a new unit executes requests of a stage: those of its model service, if they were
    measured, else those of its pool. Both mappings are by pool.
    """
    known = services.get(stage.drawn_from, {}).get(stage.service)
    measured = 0.0 if known is None else known.restore_s
    return measured or cold_start_s.get(stage.drawn_from, 0.0)


def spare_units(
    stages: Sequence[Stage], counts: Sequence[float], pool: str, services: Services, at_once: Sequence[float] | None
) -> tuple[float, float]:
    """Return what engines that are not full add to the units that requests take of them, and the most units at all.

    An engine of `degree` GPUs with one request of `concurrency` has room for the others, so that n requests take up to
    degree * (n / concurrency + 1 - 1 / concurrency) units. All requests of a stage and of those before it may meet
    there.
    """
    spare = most = reached = 0.0
    for place, stage in enumerate(stages):
        reached += counts[place]
        here = reached if at_once is None else min(reached, at_once[place])
        if stage.drawn_from != pool or here <= 0:
            continue
        share = concurrency_of(stage, services)
        spare += stage.units * (1 - 1 / share)
        most += stage.units * (math.ceil(here / share) if here < math.inf else math.inf)
    return spare, most


def rounded_up(units: float) -> float:
    """Return whole units; infinity stays. Errors of sums of fractions do not count."""
    return units if math.isinf(units) else float(math.ceil(units - _ROUNDING))
