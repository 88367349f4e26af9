"""Look-ahead: the part of a plan that is needed soon. Units that are used only after the next review are not held yet.

The search (shared/policy/scaling/search.py) returns the most units that a pool needs at any time until the open batches
are complete; the paper holds them from the first request to the last (DistRS §5.1). But arrivals ramp up over minutes,
and few requests remain at the end. The schedule that made the plan feasible shows the units in use at every moment.
Only the most of the next few seconds are held.
"""

from __future__ import annotations

import numpy as np

from shared.policy.scaling.list_scheduling import Counts, Floats
from shared.policy.scaling.search import Plan


def needed_within(plan: Plan, until_s: float) -> dict[str, int]:
    """Return the most units that a plan's schedule has in use at once before a moment, by pool.

    Args:
        plan: of batches whose clock begins now.
        until_s: that moment; infinite: the whole schedule.

    Costs a sort of the visits that begin until then.
    """
    load, starts = plan.load, plan.schedule.starts_s
    begun = (starts <= until_s) & np.isfinite(starts)
    return {
        pool: most_units(starts[mine], load.visits["lasts_s"][mine], load.visits["units"][mine])
        for pool, mine in ((name, begun & (load.visits["pool"] == number)) for number, name in enumerate(load.pools))
    }


def most_units(starts: Floats, lasts: Floats, units: Counts) -> int:
    """Most units in use at once. At one moment, ends precede starts, except for visits that start and end at that
    moment.
    """
    at_once = np.where(starts + lasts > starts, starts + lasts, np.nextafter(starts, np.inf))
    moments = np.concatenate([at_once, starts])
    changes = np.concatenate([-units.astype(np.int64), units.astype(np.int64)])
    held = np.cumsum(changes[np.argsort(moments, kind="stable")])
    return int(held.max(initial=0))
