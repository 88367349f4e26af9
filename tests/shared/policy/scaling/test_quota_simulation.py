"""SIMULATE with quotas: against an oracle on the real ledger, against the real dispatcher, and its laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.model.quotas import Level, QuotaLimits, Rate
from shared.policy.scaling.pacing import paced, permitted
from shared.policy.scaling.quota_supply import ObservedQuota
from shared.policy.scaling.search import BatchRecord, ExpectedBatch, Stage, repeating, search, simulate
from shared.policy.scaling.simulation import feasible_schedule, schedule
from shared.policy.scaling.simulation_input import SimulationInput
from tests.shared.policy.dispatch.virtual_time import VirtualTimeMesh
from tests.shared.policy.scaling.quota_oracle import (
    Observed,
    QuotaOracle,
    amid_quotas,
    observed_quotas,
    supply,
)
from tests.shared.policy.scaling.scaling_oracle import amid, strictnesses, three_pool_units
from tests.shared.policy.strategies import node, request, work

PLENTY = {"cpu": 99, "gpu": 99, "io": 99}
SEARCH = {"search": 1.0}


def limited(*concurrency: float, rates: Sequence[Rate] = (), missing: Sequence[float] = ()) -> Observed:
    levels = tuple(Level(one, 0.0) for one in missing)
    return {"search": ObservedQuota(QuotaLimits(concurrency, tuple(rates)), levels)}


def together(
    count: int, lasts_s: float, delay_s: float = 0.0, *, name: str = "b", timeout_s: float = 8.0
) -> ExpectedBatch:
    """Requests that come together and take one from the quota each."""
    record = BatchRecord((0.0,) * count, ((lasts_s,) * count,))
    return repeating(name, (Stage("judge", 1.0, timeout_s, "cpu", quotas=SEARCH),), record, delay_s)


def by_visit(inputs: SimulationInput, oracle: QuotaOracle) -> list[float]:
    names = [batch.batch for batch in inputs.batches]
    visits = zip(inputs.visits["owner"], inputs.request, inputs.stage, strict=True)
    return [oracle.start.get((names[owner], int(at), int(stage)), math.inf) for owner, at, stage in visits]


@given(amid_quotas(), three_pool_units, observed_quotas())
@settings(deadline=None, max_examples=300)
def test_each_visit_starts_when_the_oracle_starts_it(
    open_batches: list[ExpectedBatch], units: dict[str, int], observed: dict[str, ObservedQuota | None]
) -> None:
    inputs = SimulationInput(open_batches, 0.0, supply(observed))
    found = schedule(inputs.complete, [units[pool] for pool in inputs.pools])
    oracle = QuotaOracle(open_batches, units, observed)
    assert found.starts_s.tolist() == pytest.approx(by_visit(inputs, oracle), abs=1e-6)
    outcome = simulate(open_batches, units, strictness=0.0, supply=supply(observed))
    assert outcome.extra_delay_s == pytest.approx(oracle.delays(), abs=1e-5)


@given(amid_quotas(), three_pool_units, observed_quotas(), strictnesses)
@settings(deadline=None, max_examples=200)
def test_a_schedule_is_feasible_if_no_visit_waits_longer_than_the_rule_and_its_quotas_make_it(
    open_batches: list[ExpectedBatch],
    units: dict[str, int],
    observed: dict[str, ObservedQuota | None],
    strictness: float,
) -> None:
    inputs = SimulationInput(open_batches, strictness, supply(observed))
    oracle, unlimited = QuotaOracle(open_batches, units, observed), QuotaOracle(open_batches, PLENTY, observed)
    queued = [queue for queue in oracle.lanes.values() if queue]
    late = []
    for visit, start in oracle.start.items():
        batch, stage = oracle.batches[visit[0]], visit[2]
        row = batch.requests.executions_s[stage:, visit[1]]
        left = max(np.nansum(row), strictness * sum(one.timeout_s for one in batch.stages[stage:]))
        limit = max(batch.completion_s + batch.max_extra_delay_s - left, unlimited.start.get(visit, -math.inf))
        late.append(start > oracle.ready[visit] + 1e-5 and start > limit + 1e-5)
    capacity = [units[pool] for pool in inputs.pools]
    assert (feasible_schedule(inputs.complete, capacity) is not None) == (not queued and not any(late))


@given(amid(shortest=0), three_pool_units, strictnesses)
@settings(deadline=None, max_examples=200)
def test_with_quotas_for_everything_it_is_the_schedule_without_quotas(
    open_batches: list[ExpectedBatch], units: dict[str, int], strictness: float
) -> None:
    taking = [
        replace(batch, stages=tuple(replace(stage, quotas=SEARCH) for stage in batch.stages)) for batch in open_batches
    ]
    capacity = [units[pool] for pool in SimulationInput(open_batches, 0.0).pools]
    plain = schedule(SimulationInput(open_batches, strictness).complete, capacity)
    inputs = SimulationInput(taking, strictness, supply(limited(99.0, rates=[Rate(99.0, 1.0)])))
    assert inputs.complete.claims is not None
    found = schedule(inputs.complete, capacity)
    assert (found.starts_s.tolist(), found.used) == (plain.starts_s.tolist(), plain.used)
    assert (found.slack_s >= 0) == (plain.slack_s >= 0)


@given(amid_quotas(), three_pool_units, strictnesses)
@settings(deadline=None)
def test_unknown_quotas_limit_nothing(
    open_batches: list[ExpectedBatch], units: dict[str, int], strictness: float
) -> None:
    inputs = SimulationInput(open_batches, strictness, supply(limited(1.0)))
    assert inputs.complete.claims is None
    assert inputs.unlimited is None


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.lists(st.sampled_from([1.0, 2.0, 3.0]), max_size=1),
    st.lists(
        st.builds(
            Rate, st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 4.0]), st.sampled_from([None, 3.0]), st.just("")
        ),
        max_size=1,
    ),
)
@settings(deadline=None, max_examples=100)
def test_the_dispatcher_starts_each_request_when_the_simulation_does(
    drawn: list[tuple[int, int]], cores: int, concurrency: list[float], rates: list[Rate]
) -> None:
    """Requests of one batch and one stage. The real dispatcher grants them, woken as the leader wakes it."""
    drawn.sort(key=lambda one: one[0])
    arrivals, lasts = zip(*drawn, strict=True)
    limits = QuotaLimits(tuple(concurrency), tuple(rates))
    mesh = VirtualTimeMesh([node("n", {"cores": cores})], lambda one: float(lasts[int(one.id)]))
    mesh.do(mesh.dispatcher.handle(0.0, QuotaSet("search", limits)))
    needs = msgspec.structs.replace(work(timeout_s=8.0), quotas=SEARCH)
    for number, at_s in enumerate(arrivals):
        mesh.at(float(at_s), request(str(number), needs, at_s=at_s, seq=number, batch="b"))
    for _ in range(200):
        if len(mesh.started) == len(drawn):
            break
        next_s = min([mesh.dispatcher.next_wake_s, *(at_s for at_s, _, _ in mesh._agenda)])
        mesh.tick(next_s)
    record = BatchRecord(tuple(map(float, arrivals)), (tuple(map(float, lasts)),))
    batch = repeating("b", (Stage("run", 1.0, 8.0, "cpu", quotas=SEARCH),), record, 0.0)
    inputs = SimulationInput([batch], 0.0, supply({"search": ObservedQuota(limits)}))
    found = schedule(inputs.complete, [cores])
    assert [mesh.started[str(at)] for at in inputs.request] == pytest.approx(found.starts_s.tolist(), abs=1e-6)


@given(amid_quotas(), three_pool_units, observed_quotas(finite=True), strictnesses)
@settings(deadline=None)
def test_a_found_plan_is_feasible_and_no_single_pool_can_lose_a_unit(
    open_batches: list[ExpectedBatch],
    ceilings: dict[str, int],
    observed: dict[str, ObservedQuota | None],
    strictness: float,
) -> None:
    given = supply(observed)
    plan = search(open_batches, ceilings, strictness=strictness, supply=given)
    assert plan.outcome == simulate(open_batches, plan.units, strictness=strictness, supply=given)
    if not plan.outcome.feasible:
        assert plan.units == {pool: ceilings[pool] for pool in plan.units}
        return
    inputs = SimulationInput(open_batches, strictness, given)
    for number, pool in enumerate(inputs.pools):
        fewer = {**plan.units, pool: plan.units[pool] - 1}
        outcome = simulate(open_batches, fewer, strictness=strictness, supply=given)
        assert plan.units[pool] <= inputs.bound(number) or not outcome.feasible


def test_a_rate_needs_the_units_of_its_pace() -> None:
    """100 requests of 0.5 s at 10 a second: five at once."""
    batch = together(100, 0.5)
    observed = limited(rates=[Rate(10.0, 1.0, 1.0)])
    assert search([batch], {"cpu": 64}, strictness=1.0).units == {"cpu": 64}
    assert search([batch], {"cpu": 64}, strictness=1.0, supply=supply(observed)).units == {"cpu": 5}


def test_concurrency_needs_the_units_that_it_lets_run() -> None:
    plan = search([together(40, 3.0)], {"cpu": 64}, supply=supply(limited(7.0)))
    assert plan.units == {"cpu": 7}


def test_a_full_bucket_is_granted_at_once_and_an_empty_one_is_not() -> None:
    batch = together(12, 1.0)
    rate = Rate(1.0, 1.0, 8.0)
    assert search([batch], {"cpu": 64}, supply=supply(limited(rates=[rate]))).units == {"cpu": 8}
    assert search([batch], {"cpu": 64}, supply=supply(limited(rates=[rate], missing=[8.0]))).units == {"cpu": 1}


def test_a_batch_is_permitted_the_delay_that_earlier_batches_cause_by_their_quota() -> None:
    """Eight of 2 s and then eight of 2 s, four at once: T of each alone is 4, and the second one ends at 8."""
    given = supply(limited(4.0))
    first, _ = paced(replace(together(8, 2.0, 1.0), key_s=0.0), given, None)
    second, paced_s = paced(replace(together(8, 2.0, 1.0, name="c"), key_s=1.0), given, None)
    assert (first.completion_s, second.completion_s, paced_s) == (4.0, 4.0, 4.0)
    found, stages = permitted([first, second], given)
    assert [(one.max_extra_delay_s, one.declared_s) for one in found] == [(1.0, 1.0), (4.0, 1.0)]
    assert [one.text for one in stages] == ["the quota 'search' (4 at once) limits stage judge"] * 2


def test_without_waits_for_quotas_a_batch_stays_as_it_is() -> None:
    batch = together(3, 1.0)
    assert paced(batch, supply(limited(3.0)), None) == (batch, None)
    assert permitted([batch], {}) == ([batch], [])


def test_work_without_quotas_passes_work_that_waits_for_one() -> None:
    plain = repeating("p", (Stage("run", 1.0, 8.0, "cpu"),), BatchRecord((0.0,), ((1.0,),)), 0.0)
    first = replace(together(4, 1.0, 99.0), key_s=0.0)
    outcome = simulate([first, plain], {"cpu": 2}, strictness=0.0, supply=supply(limited(1.0)))
    assert outcome.extra_delay_s == {"b": 3.0, "p": 0.0}
