"""Engines that several requests share: plans counted in engines, against counts at every moment."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.chunked_pools import PlannedService
from shared.policy.scaling.quota_supply import UNLIMITED
from shared.policy.scaling.relaxation import RelaxedPlan, search_relaxed
from shared.policy.scaling.shared_engines import SharedEngines
from shared.policy.scaling.workload import BatchRecord, ExpectedBatch, Stage, repeating

GPUS = "gpus@default"


def batch(name: str, stages: tuple[Stage, ...], arrivals: list[float], times: list[list[float]]) -> ExpectedBatch:
    return repeating(name, stages, BatchRecord(tuple(arrivals), tuple(map(tuple, times))), 5.0)


def stage(service: str, degree: int = 1, pool: str = GPUS) -> Stage:
    return Stage(service or "plain", 1.0, 10.0, pool, degree, service=service)


def searched(engines: SharedEngines, ceiling: int = 64) -> RelaxedPlan:
    return engines.search({GPUS: ceiling, "cpu": 64}, strictness=0.0, trade=True, near=None, supply=UNLIMITED)


@pytest.mark.parametrize(("requests", "concurrency", "gpus"), [(64, 64, 2), (65, 64, 4), (64, 16, 8), (3, 1, 6)])
def test_requests_at_once_share_engines(requests: int, concurrency: int, gpus: int) -> None:
    """All come at once, and none may wait."""
    one = batch("b", (stage("a", 2),), [0.0] * requests, [[10.0] * requests])
    engines = SharedEngines.of([one], {GPUS: {"a": PlannedService((2,), concurrency)}})
    assert searched(engines).plan.units == {GPUS: gpus}


def test_services_do_not_share_an_engine() -> None:
    two = [batch(name, (stage(name),), [0.0], [[10.0]]) for name in "ab"]
    engines = SharedEngines.of(two, {GPUS: {name: PlannedService((1,), 64) for name in "ab"}})
    assert searched(engines).plan.units == {GPUS: 2}
    same = [batch(name, (stage("a"),), [0.0], [[10.0]]) for name in "ab"]
    engines = SharedEngines.of(same, {GPUS: {"a": PlannedService((1,), 64)}})
    assert searched(engines).plan.units == {GPUS: 1}, "batches share engines of one service"


workflows = st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.sampled_from([1, 2])), min_size=1, max_size=2)


@given(
    st.lists(st.tuples(workflows, st.lists(st.integers(0, 6), min_size=1, max_size=5)), min_size=1, max_size=2),
    st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 3, 1), (4, 6, 3)]),
    st.sampled_from([4, 8, 64]),
)
@settings(deadline=None, max_examples=60)
def test_a_plan_has_the_engines_of_its_schedule_at_every_moment(
    given: list[tuple[list[tuple[str, int]], list[int]]], shares: tuple[int, int, int], ceiling: int
) -> None:
    services = {name: PlannedService((1, 2), share) for name, share in zip("abc", shares, strict=True)}
    batches = [
        batch(
            f"b{number}",
            tuple(stage(name, degree) for name, degree in workflow),
            [float(at) for at in arrivals],
            [[float(1 + (at + place) % 3) for at in range(len(arrivals))] for place in range(len(workflow))],
        )
        for number, (workflow, arrivals) in enumerate(given)
    ]
    engines = SharedEngines.of(batches, {GPUS: services})
    plan = searched(engines, ceiling).plan
    alone = search_relaxed(batches, {GPUS: ceiling}, strictness=0.0).plan
    if not engines.slots:
        assert (plan.units, plan.outcome) == (alone.units, alone.outcome), "without shared engines nothing changes"
        return
    visits, starts, most = plan.inputs.visits, plan.schedule.starts_s, 0
    for now in sorted({float(at) for at in starts if math.isfinite(at)}):
        running = Counter[tuple[str, int]]()
        for number, (begin, lasts) in enumerate(zip(starts, visits["lasts_s"], strict=True)):
            if begin <= now < begin + lasts:
                one = batches[visits["owner"][number]].stages[plan.inputs.stage[number]]
                running[one.service, one.units] += 1
        used = sum(
            math.ceil(count / (services[name].concurrency if name else 1)) * degree
            for (name, degree), count in running.items()
        )
        most = max(most, used)
    assert engines.used(plan) == {GPUS: most}
    assert plan.units == {GPUS: min(ceiling, most)}
    assert engines.used(plan, -1.0) == {GPUS: 0}


def test_only_pools_with_shared_engines_are_counted_in_slots() -> None:
    mixed = batch("b", (stage("", 2, "cpu"), stage("a", 2)), [0.0] * 4, [[1.0] * 4, [10.0] * 4])
    engines = SharedEngines.of([mixed], {GPUS: {"a": PlannedService((2,), 4)}})
    assert engines.slots_of({GPUS: 3, "cpu": 5}) == {GPUS: 12, "cpu": 5}
    assert [one.units for one in engines.in_slots()[0].stages] == [2, 2]
    assert searched(engines).plan.units == {GPUS: 2, "cpu": 2}, "D permits one after the other"
