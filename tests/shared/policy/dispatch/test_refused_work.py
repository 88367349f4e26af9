"""A walk over a lane that passes over works of which one could not start, beside one that looks at every action."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.quota_turns import QuotaTurns
from shared.policy.dispatch.refused_work import RefusedWork
from shared.policy.model.formulation import Grant, Work
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.resources.pools import Lane
from tests.shared.policy.dispatch.random_history import QUOTAS, History
from tests.shared.policy.dispatch.saturated_quota import SaturatedQuota
from tests.shared.policy.strategies import CORES, work


def looks_at_all(self: RefusedWork, action: ActionState) -> bool:
    return False


def pushed(self: Lane, like: tuple[Work, str] | None) -> None:
    """Any two actions may differ."""
    self.alike = None


@pytest.mark.parametrize(("tenants", "fewest_alike"), [(("ada", "bob", "cyd"), 10), (("ada",), 50)])
def test_passing_over_work_like_that_which_could_not_start_decides_the_same(
    tenants: tuple[str, ...], fewest_alike: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step again on a copy of the state before it. Most actions are of four works, as those of tasks."""
    passed_over = granted = alike = 0
    contains, refuse_all = RefusedWork.__contains__, QuotaTurns.refuse_all

    def counted(self: RefusedWork, action: ActionState) -> bool:
        nonlocal passed_over
        found = contains(self, action)
        passed_over += found
        return found

    def counted_lanes(self: QuotaTurns, lane: Lane) -> bool:
        nonlocal alike
        found = refuse_all(self, lane)
        alike += found and len(lane.queue) > 1
        return found

    for seed in range(4):
        made = History(Random(seed), acting=0.1, taking=0.9, tenants=tenants, repeated=0.8)
        for quota, limits in QUOTAS.items():
            made.give(QuotaSet(quota, limits[0]))
        for at in range(10):
            made.join(at)
        for _ in range(250):
            again, first = deepcopy(made.dispatcher), len(made.steps)
            with monkeypatch.context() as patch:
                patch.setattr(RefusedWork, "__contains__", counted)
                patch.setattr(QuotaTurns, "refuse_all", counted_lanes)
                made.step()
            with monkeypatch.context() as patch:
                patch.setattr(RefusedWork, "__contains__", looks_at_all)
                patch.setattr(Lane, "pushed", pushed)
                for lane in [lane for pool in again.cluster.queues.pools.values() for lane in pool.all_lanes()]:
                    lane.alike = None
                for now, stimulus, commands in made.steps[first:]:
                    assert again.handle(now, stimulus) == commands, stimulus
                    granted += sum(isinstance(one, Grant) for one in commands)
    assert passed_over > 300
    assert alike > fewest_alike
    assert granted > 200


def test_lanes_of_one_work_and_tenant_each_decide_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tenant has a quota of its own, so a lane of its own, and all share another one."""
    limits = {"api": QuotaLimits((), (Rate(20.0, 1.0),)), "slots": QuotaLimits((6.0,))}
    limits |= {f"own{at}": QuotaLimits((2.0,), (Rate(3.0 + at, 1.0, 2.0),)) for at in range(5)}
    shared = ({"api": 1.0}, {"api": 2.0}, {"api": 1.0, "slots": 1.0})
    plain = work(CORES, timeout_s=1000.0)
    works = {f"t{at}": replace(plain, quotas={**shared[at % 3], f"own{at}": 1.0}) for at in range(5)}
    found = []
    for is_like in (Lane.pushed, pushed):
        monkeypatch.setattr(Lane, "pushed", is_like)
        loaded = SaturatedQuota(works, limits)
        for tenant in works:
            loaded.join(tenant)
        loaded.run(400)
        found.append(loaded.grants)
    assert found[0] == found[1]
