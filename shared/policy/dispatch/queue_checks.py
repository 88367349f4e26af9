"""Invariants of queues. Tests assert them after every step, services never do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isclose

from shared.policy.dispatch.action_state import ActionState
from shared.policy.model.quotas import Amounts
from shared.policy.resources.pools import Pool
from shared.policy.resources.quota_demand import QuotaDemand


def check_lanes(pool: Pool, queued: dict[str, ActionState]) -> None:
    """Assert that each waiting action of a pool is in exactly one of its lanes."""
    rest = set(queued)
    for lane in pool.all_lanes():
        lane.queue.check()
        waiting = {*lane.queue, *lane.stuck, *lane.behind, *lane.postponed, *lane.withdrawn}
        assert len(waiting) == lane.waiting, f"{pool.name} {lane.name}: in its order and set aside"
        assert waiting == {name for name in rest if queued[name].lane is lane}, f"{lane.name}: its actions"
        assert lane is pool or waiting, f"{pool.name}: the lane {lane.name} is empty"
        rest -= waiting
    assert not rest, f"{pool.name}: its lanes contain what waits for it, not {rest}"
    services = Counter(one.work.service for one in queued.values() if one.work.service)
    assert services == pool.services, f"{pool.name}: waiting actions by model service"


def check_demand(
    pool: Pool, queued: list[ActionState], held: list[ActionState], counted: Mapping[str, Amounts]
) -> None:
    """Assert that the demand of a pool is that of its waiting and granted actions. `counted`: action -> amounts with
    which it counts.
    """
    assert len(queued) == pool.queued, f"{pool.name}: number of waiting actions"
    queued_s = sum(action.expected_s * action.pool_units for action in queued)
    assert isclose(queued_s, pool.queued_s, abs_tol=1e-6), f"{pool.name}: unit-seconds that wait"
    each = {action.request.id: action for action in [*queued, *held]}.values()
    wanted = [(action.wanted_units, action.request.batch) for action in each if action.in_demand]
    assert sum(units for units, _ in wanted) == pool.demand.units, f"{pool.name}: units wanted"
    outside = sum(units for units, batch in wanted if not batch)
    assert outside == pool.outside.units, f"{pool.name}: units wanted outside batches"
    asked = QuotaDemand()
    for action in queued:
        if not action.in_demand:
            asked.add(counted[action.request.id], action.wanted_units, outside=not action.request.batch)
    assert {key: one.counts for key, one in asked.sets.items()} == {
        key: one.counts for key, one in pool.quota_demand.sets.items()
    }, f"{pool.name}: waiting work that takes quotas"
    for key, work in pool.quota_demand.sets.items():
        for name, amount in asked.sets[key].amounts.items():
            assert isclose(amount, work.amounts[name], abs_tol=1e-6), f"{pool.name}: amounts of {name} that wait"
