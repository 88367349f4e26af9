"""Searches with relaxed strictness, for loads that the ceilings cannot serve as strictly as configured.

At full strictness, the timeout-aware rule forbids nearly all queueing in the last timeouts of a batch. Few units, long
timeouts or a batch that is already late make that impossible. The ceilings of all pools would then be held without
benefit. So the strictness is lowered stepwise until the ceilings meet it. If the expected times alone break D, each
batch gets the delay that the ceilings cause. Pools that are not the cause are then as small as that delay permits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shared.policy.scaling.list_scheduling import TOLERANCE_S
from shared.policy.scaling.quota_supply import UNLIMITED, Supply
from shared.policy.scaling.search import ExpectedBatch, Outcome, Plan, search, simulate

STEPS: Final = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Parts of the strictness that are tried, in this order."""


@dataclass(frozen=True)
class RelaxedPlan:
    """A plan, and the constraints it was searched for."""

    plan: Plan
    strictness: float
    """Strictness that the ceilings meet."""
    part: float = 1.0
    """Part of the configured strictness."""
    missed: Outcome | None = None
    """Outcome of the ceilings if they break D by the expected times alone; else None."""
    batches: tuple[ExpectedBatch, ...] = ()
    """Batches with the delays that were searched for."""


def search_relaxed(
    batches: Sequence[ExpectedBatch],
    ceilings: Mapping[str, int],
    *,
    strictness: float = 1.0,
    trade: bool = True,
    near: Mapping[str, int] | None = None,
    supply: Supply = UNLIMITED,
) -> RelaxedPlan:
    """Run the search (`search.search`) at the greatest part of the strictness that the ceilings meet.

    If a stage can never run because its pool is too small for one worker, the plan is the ceilings.

    Costs one search if the strictness can be met, else two simulations more for each step.

    Raises:
        ValueError: the requests do not have one row of times for each stage.
    """
    for part in STEPS if strictness else STEPS[:1]:
        plan = search(batches, ceilings, strictness=part * strictness, trade=trade, near=near, supply=supply)
        if plan.outcome.feasible:
            return RelaxedPlan(plan, part * strictness, part, None, tuple(batches))
    missed = simulate(batches, ceilings, strictness=0.0, supply=supply)
    if not all(map(math.isfinite, missed.extra_delay_s.values())):
        return RelaxedPlan(plan, 0.0, 0.0, missed, tuple(batches))
    late = tuple(
        replace(
            batch,
            max_extra_delay_s=max(batch.max_extra_delay_s, missed.extra_delay_s[batch.batch] + TOLERANCE_S),
            declared_delay_s=batch.declared_s,
        )
        for batch in batches
    )
    plan = search(late, ceilings, strictness=0.0, trade=trade, near=near, supply=supply)
    return RelaxedPlan(plan, 0.0, 0.0, missed, late)
