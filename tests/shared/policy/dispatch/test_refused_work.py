"""A walk over a lane that passes over works of which one could not start, beside one that looks at every action."""

from __future__ import annotations

from copy import deepcopy
from itertools import count
from random import Random

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.quota_turns import QuotaTurns
from shared.policy.dispatch.refused_work import RefusedWork
from shared.policy.dispatch.stimuli import AttemptsEnded, InventoryReported, NodeJoined, NodeSeen
from shared.policy.model.formulation import Grant, Work
from shared.policy.model.quotas import LEARNED, QuotaLimits, Rate
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.pools import Lane
from tests.shared.policy.dispatch.random_history import QUOTAS, History
from tests.shared.policy.dispatch.saturated_quota import SaturatedQuota
from tests.shared.policy.strategies import CORES, SPECS, request, submitted, work


def looks_at_all(self: RefusedWork, action: ActionState) -> bool:
    return False


def pushed(self: Lane, like: object) -> None:
    """Any two actions may differ."""
    self.alike = None


@pytest.mark.parametrize(("tenants", "fewest_alike"), [(("ada", "bob", "cyd"), 10), (("ada",), 30)])
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
        tasks = ("task", "another") if seed == 3 else ("task",)
        made = History(Random(seed), acting=0.1, taking=0.9, tenants=tenants, repeated=0.8, tasks=tasks)
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


def test_calls_of_a_task_do_not_wait_for_a_longer_one_of_the_same_work() -> None:
    """Another tenant's turn in `api` comes when `other` is free, in 5 s. Only the short task ends before."""
    dispatcher, seq = Dispatcher(specs=SPECS), count()
    plain = replace(work(CORES, timeout_s=1000.0), quotas={"api": 1.0})
    for name in ("api", "other"):
        dispatcher.handle(0.0, QuotaSet(name, QuotaLimits((1.0,))))
    dispatcher.handle(0.0, NodeJoined("n", "1", "cpu", {"cores": 64}, frozenset({"run"})))
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))

    def submit(now: float, tenant: str, task: str, one: Work, priority: float = 0.0) -> list[Grant]:
        name = f"{task}{next(seq)}"
        made = request(name, one, at_s=now, tenant=tenant, task=task, deadline_s=1e9, priority=priority)
        return [one for one in dispatcher.handle(now, submitted(made)) if isinstance(one, Grant)]

    def end(now: float, grant: Grant, took_s: float) -> list[Grant]:
        result = AttemptResult("ok", True)
        done = Ended(grant.action, grant.node, grant.attempt, grant.stage, result, execution_s=took_s)
        commands = dispatcher.handle(now, NodeSeen("n", "1"), AttemptsEnded((done,)))
        return [one for one in commands if isinstance(one, Grant)]

    now = 0.0
    for took_s, task in [(50.0, "long"), (0.2, "short")] * 6:
        (first,) = submit(now, "ada", task, plain)
        now += took_s
        end(now, first, took_s)
    submit(now, "cyd", "other", replace(plain, quotas={"other": 1.0}, duration_s=5.0))
    (busy,) = submit(now, "dan", "busy", replace(plain, duration_s=1.0))
    assert submit(now, "bob", "both", replace(plain, quotas={"api": 1.0, "other": 1.0}, duration_s=1.0)) == []
    assert submit(now, "ada", "long", plain, priority=-100.0) == []
    assert submit(now, "ada", "short", plain) == []
    assert [one.action[:5] for one in end(now + 1.0, busy, 1.0)] == ["short"]


def test_of_calls_with_estimated_amounts_one_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their amounts are those of their task."""
    looks = 0
    lacks = QuotaTurns.lacks

    def counted(self: QuotaTurns, action: ActionState) -> bool:
        nonlocal looks
        looks += 1
        return lacks(self, action)

    estimated = replace(work(CORES, timeout_s=1000.0), quotas={"api": 1.0, "tokens": LEARNED})
    loaded = SaturatedQuota(
        {"ada": estimated, "bob": estimated}, {"api": QuotaLimits((2.0,)), "tokens": QuotaLimits((64.0,))}
    )
    for tenant in ("ada", "bob"):
        loaded.join(tenant)
    monkeypatch.setattr(QuotaTurns, "lacks", counted)
    loaded.run(20)
    assert looks < 20 * 10, "80 calls wait"
