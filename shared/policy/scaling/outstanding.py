"""Outstanding requests of an open batch: the most units that they could use, and the fewest that let them progress."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from itertools import accumulate

from shared.policy.scaling.chunked_pools import Services, concurrency_of, rounded_up, spare_units
from shared.policy.scaling.stimuli import ObservedBatch
from shared.policy.scaling.workload import Stage

_QUEUING, _RUNNING = 16, 24
"""Bytes of a request in `ObservedBatch.queuing` and `ObservedBatch.running`."""


def outstanding(
    stages: Sequence[Stage], size: int | None, observed: ObservedBatch, generating: int | None = None
) -> list[float]:
    """Return the unanswered requests by their present stage; future requests count at the first.

    Args:
        stages: of the workflow, at least one.
        size: requests of the batch; None: not declared.
        observed: the batch as the dispatcher published it.
        generating: samples that have not been submitted yet, as the trainer reports; None: no report.

    Returns:
        A number by stage. The first is infinite while the number of future requests is unknown.
    """
    counts = [0.0] * len(stages)
    for packed, width in ((observed.queuing, _QUEUING), (observed.running, _RUNNING)):
        for stage, table in enumerate(packed[: len(stages)]):
            counts[stage] += len(table) // width
    unseen = max(0.0, observed.arrived - observed.answered - sum(counts))
    future = 0.0
    if not observed.closed:
        future = math.inf if size is None else float(max(0, size - observed.arrived))
        if generating is not None:
            future = min(future, float(generating))
    counts[0] += unseen + future
    return counts


def most_units(
    stages: Sequence[Stage],
    counts: Sequence[float],
    pool: str,
    at_once: Sequence[float] | None = None,
    services: Services | None = None,
) -> float:
    """Most units of a pool that outstanding requests could hold at once: each is in one stage at a time.

    Args:
        stages: of the workflow.
        counts: unanswered requests by their present stage.
        pool: the pool.
        at_once: by stage, the most requests that its quotas let run at once; None: any number of each.
        services: of a pool of chunks, whose requests share engines. Then the result is an upper bound, at most a chunk
            of each service above the exact number. None: each request has units of its own.
    """
    widths = [float(stage.units) if stage.drawn_from == pool else 0.0 for stage in stages]
    alone = _spread(widths, counts, at_once)
    shares = [concurrency_of(stage, services or {}) for stage in stages]
    if all(share == 1 for share in shares):
        return alone
    together = _spread([width / share for width, share in zip(widths, shares, strict=True)], counts, at_once)
    spare, most = spare_units(stages, counts, pool, services or {}, at_once)
    return rounded_up(min(alone, together + spare, most))


def _spread(widths: Sequence[float], counts: Sequence[float], at_once: Sequence[float] | None) -> float:
    """Most units that requests hold, each in the best of its stages. `widths`: units of a request by stage."""
    if at_once is not None:
        return _limited(widths, counts, at_once)
    widest = list(accumulate(reversed(widths), max))[::-1]
    return sum(count * width for count, width in zip(counts, widest, strict=True) if count and width)


def _limited(widths: Sequence[float], counts: Sequence[float], at_once: Sequence[float]) -> float:
    """Most units that requests hold of which only some may be in a stage at once."""
    left, units = list(counts), 0.0
    for place in sorted(range(len(widths)), key=lambda place: -widths[place]):
        room = at_once[place] if widths[place] else 0.0
        for present in range(place, -1, -1):  # those with the fewest stages to come first
            taken = min(room, left[present])
            if taken > 0:
                units += taken * widths[place]
                room, left[present] = (one - taken if one < math.inf else one for one in (room, left[present]))
    return units


def least_units(
    stages: Sequence[Stage],
    counts: Sequence[float],
    pool: str,
    held_back: Container[str] = (),
    *,
    chunked: bool = False,
) -> int:
    """Units for one worker of each stage that an outstanding request may still need, the widest first.

    Fewer requests than stages need as many workers as there are requests. `held_back`: names of stages that quotas do
    not let start soon; they need none. `chunked`: stages take turns on the pool's chunks, so the widest is enough.
    """
    reached = accumulate(counts)
    widths = [
        stage.units
        for stage, come in zip(stages, reached, strict=True)
        if come and stage.drawn_from == pool and stage.name not in held_back
    ]
    requests = 1.0 if chunked else sum(counts)
    return sum(sorted(widths, reverse=True)[: len(widths) if math.isinf(requests) else int(requests)])
