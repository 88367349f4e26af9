"""The search against all allocations, and its shortcuts: pools with room and running requests are left out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.search import (
    UNREACHED,
    BatchRecord,
    ExpectedBatch,
    Requests,
    Stage,
    repeating,
    search,
    simulate,
)
from shared.policy.scaling.simulation import feasible_schedule, schedule
from shared.policy.scaling.simulation_input import SimulationInput
from tests.shared.policy.scaling.scaling_oracle import (
    Oracle,
    amid,
    batches,
    cost,
    least,
    strictnesses,
    three_pool_units,
)
from treadle.lab.replay.distrs.gap import gap
from treadle.lab.replay.distrs.search_load import search_load

STEPS = (Stage("prepare", 1.0, 9.0, "cpu"), Stage("run", 1.0, 9.0, "gpu"))
PLENTY = {"cpu": 100, "gpu": 100, "io": 100}


def among(open_batches: Sequence[ExpectedBatch], pools: Mapping[str, int]) -> dict[str, int]:
    """Only the pools that the batches draw from."""
    return {pool: pools[pool] for pool in SimulationInput(open_batches, 0.0).pools}


def cheapest(open_batches: Sequence[ExpectedBatch], ceilings: Mapping[str, int], strictness: float) -> float | None:
    """Cost of the cheapest allocation that does, by trying all from the one worker on that Algorithm 1 begins at."""
    found = (
        cost(open_batches, units)
        for counts in itertools.product(
            *(range(min(least(open_batches, pool), most), most + 1) for pool, most in ceilings.items())
        )
        if Oracle(open_batches, units := dict(zip(ceilings, counts, strict=True))).feasible(strictness)
    )
    return min(found, default=None)


@given(amid(), three_pool_units, strictnesses, st.booleans(), st.none() | three_pool_units)
@settings(deadline=None)
def test_a_plan_does_and_no_single_pool_can_lose_a_unit_wherever_the_search_begins(
    open_batches: list[ExpectedBatch],
    pools: dict[str, int],
    strictness: float,
    trade: bool,
    near: dict[str, int] | None,
) -> None:
    ceilings = among(open_batches, pools)
    plan = search(open_batches, ceilings, strictness=strictness, trade=trade, near=near)
    assert all(plan.units[pool] <= most for pool, most in ceilings.items())
    assert plan.outcome.feasible == Oracle(open_batches, ceilings).feasible(strictness)
    if not plan.outcome.feasible:
        assert plan.units == plan.sequential == ceilings
        return
    assert Oracle(open_batches, plan.units).feasible(strictness)
    for pool, units in plan.units.items():
        fewer = {**plan.units, pool: units - 1}
        kept = min(least(open_batches, pool), ceilings[pool])
        assert units == kept or not Oracle(open_batches, fewer).feasible(strictness)


@given(amid(shortest=0), three_pool_units, strictnesses)
@settings(deadline=None)
def test_trading_never_makes_a_plan_more_expensive(
    open_batches: list[ExpectedBatch], pools: dict[str, int], strictness: float
) -> None:
    ceilings = among(open_batches, pools)
    sequential, traded = (search(open_batches, ceilings, strictness=strictness, trade=trade) for trade in (False, True))
    assert sequential.units == sequential.sequential == traded.sequential
    assert cost(open_batches, traded.units) <= cost(open_batches, sequential.units) + 1e-9


@given(amid(), three_pool_units, strictnesses)
@settings(deadline=None, max_examples=50)
def test_no_plan_is_cheaper_than_the_cheapest_there_is(
    open_batches: list[ExpectedBatch], pools: dict[str, int], strictness: float
) -> None:
    ceilings = among(open_batches, pools)
    plan = search(open_batches, ceilings, strictness=strictness)
    if plan.outcome.feasible:
        optimum = cheapest(open_batches, ceilings, strictness)
        assert optimum is not None
        assert cost(open_batches, plan.units) >= optimum - 1e-9


def test_a_pool_too_small_for_unexpected_stages_keeps_no_other_pool_large() -> None:
    """All GPUs are gone; this batch is expected to use none."""
    record = BatchRecord((0.0, 5.0), ((2.0, 2.0), (UNREACHED, UNREACHED)))
    plan = search([repeating("b", STEPS, record, 0.0)], {"cpu": 9, "gpu": 0})
    assert plan.outcome.feasible
    assert plan.units == {"cpu": 1, "gpu": 0}


@given(amid(units=1, stages=1, most=1), three_pool_units, strictnesses, st.booleans())
@settings(deadline=None)
def test_with_one_stage_the_plan_is_the_cheapest_there_is(
    open_batches: list[ExpectedBatch], pools: dict[str, int], strictness: float, trade: bool
) -> None:
    ceilings = among(open_batches, pools)
    plan = search(open_batches, ceilings, strictness=strictness, trade=trade)
    optimum = cheapest(open_batches, ceilings, strictness)
    assert (cost(open_batches, plan.units) if plan.outcome.feasible else None) == optimum


@given(amid(units=1, stages=1, most=1), st.integers(1, 6))
@settings(deadline=None)
def test_with_one_stage_a_unit_more_never_lengthens_a_batch(open_batches: list[ExpectedBatch], units: int) -> None:
    (pool,) = SimulationInput(open_batches, 0.0).pools
    fewer, more = (simulate(open_batches, {pool: count}).extra_delay_s["b0"] for count in (units, units + 1))
    assert more <= fewer


def test_with_one_stage_and_two_batches_a_unit_more_can_lengthen_one() -> None:
    """Two workers start both long ones of the later batch at 5 s; the request that arrives at 8 s waits for them."""
    run = STEPS[1:]
    sooner = repeating("sooner", run, BatchRecord((0.0, 5.0), ((2.0, 2.0),)), 0.0, 3.0)
    later = repeating("later", run, BatchRecord((0.0, 3.0, 3.0), ((5.0, 6.0, 8.0),)), 0.0, 2.0)
    delays = [simulate([sooner, later], {"gpu": gpu}, strictness=0.0).extra_delay_s["sooner"] for gpu in (1, 2, 3)]
    assert delays == [1.0, 3.0, 0.0]


@given(amid(), three_pool_units, strictnesses)
@settings(deadline=None)
def test_a_simulation_in_the_midst_of_batches_agrees_with_the_oracle(
    open_batches: list[ExpectedBatch], pools: dict[str, int], strictness: float
) -> None:
    units = among(open_batches, pools)
    oracle, simulated = Oracle(open_batches, units), simulate(open_batches, units, strictness=strictness)
    assert simulated.extra_delay_s == pytest.approx(oracle.delays())
    assert simulated.feasible == oracle.feasible(strictness)
    assert simulated.peak_units == {pool: oracle.peak(pool) for pool in units}


def running(left_s: Sequence[float], waiting_s: Sequence[float], delay_s: float) -> ExpectedBatch:
    """Requests that run on the CPU, and others that wait for it; none continues on the GPU."""
    size = len(left_s) + len(waiting_s)
    rows = np.array([[*left_s, *waiting_s], [np.nan] * size])
    runs = np.arange(size) < len(left_s)
    return ExpectedBatch("b", STEPS, Requests(np.zeros(size), np.zeros(size), rows, runs), delay_s, rows[0].max())


def test_running_requests_hold_their_units_even_if_fewer_are_owned() -> None:
    batch = running([4.0, 4.0, 6.0], [1.0], 9.0)
    outcomes = [simulate([batch], {"cpu": owned, "gpu": 1}, strictness=0.0) for owned in (1, 2, 3, 4)]
    # with one unit only the end of the third lets the fourth begin: it is the first that leaves one free
    assert [outcome.extra_delay_s["b"] for outcome in outcomes] == [1.0, 0.0, 0.0, 0.0]
    assert [outcome.peak_units["cpu"] for outcome in outcomes] == [3, 3, 3, 4]


def test_running_requests_are_not_planned_for() -> None:
    plan = search([running([4.0, 4.0, 6.0], [], 0.0)], {"cpu": 9, "gpu": 9})
    assert plan.units == {"cpu": 1, "gpu": 1}
    assert plan.outcome.feasible
    assert plan.outcome.peak_units == {"cpu": 3, "gpu": 0}


def in_seconds_of(unit_s: float, open_batches: Sequence[ExpectedBatch]) -> list[ExpectedBatch]:
    """The same batches, their times so many units and so rounded."""
    return [
        ExpectedBatch(
            batch.batch,
            tuple(replace(stage, timeout_s=stage.timeout_s * unit_s) for stage in batch.stages),
            Requests(asks.arrivals_s * unit_s, asks.ready_s * unit_s, asks.executions_s * unit_s, asks.running),
            batch.max_extra_delay_s * unit_s,
            batch.completion_s * unit_s,
        )
        for batch in open_batches
        for asks in [batch.requests]
    ]


@given(amid(shortest=0), st.sampled_from([1.0, 0.1]), three_pool_units, strictnesses, st.data())
@settings(deadline=None, max_examples=200)
def test_leaving_out_pools_with_room_changes_nothing(
    open_batches: list[ExpectedBatch], unit_s: float, pools: dict[str, int], strictness: float, data: st.DataObject
) -> None:
    inputs = SimulationInput(in_seconds_of(unit_s, open_batches), strictness)
    most = schedule(inputs.complete, [100] * len(inputs.pools)).used
    roomy = data.draw(st.frozensets(st.sampled_from(range(len(inputs.pools)))))
    units = [most[number] if number in roomy else pools[pool] for number, pool in enumerate(inputs.pools)]
    spared = inputs.spared(roomy)
    assert spared <= roomy
    whole, reduced = feasible_schedule(inputs.complete, units), feasible_schedule(inputs.without(spared), units)
    assert (whole is None) == (reduced is None)
    if whole is not None and reduced is not None:
        kept = ~np.isin(inputs.visits["pool"], list(spared))
        assert whole.starts_s[kept].tolist() == reduced.starts_s.tolist()
        for number in set(range(len(units))) - spared:
            assert whole.used[number] == reduced.used[number]


@given(amid(shortest=0), st.sampled_from([1.0, 0.1, 0.001]), strictnesses, st.booleans())
@settings(deadline=None)
def test_with_plenty_of_units_a_feasible_plan_is_found(
    open_batches: list[ExpectedBatch], unit_s: float, strictness: float, trade: bool
) -> None:
    plan = search(in_seconds_of(unit_s, open_batches), PLENTY, strictness=strictness, trade=trade)
    assert plan.outcome.feasible


def test_an_execution_of_0_s_is_not_skipped() -> None:
    """`first` is through `prepare` as it comes, but `second` has taken the only GPU before it is looked at again."""
    first = repeating("first", STEPS, BatchRecord((0.0,), ((0.0,), (4.0,))), 0.0)
    second = repeating("second", STEPS[1:], BatchRecord((0.0,), ((5.0,),)), 4.0)
    assert simulate([first, second], {"cpu": 1, "gpu": 1}, strictness=0.0).extra_delay_s == {
        "first": 5.0,
        "second": 0.0,
    }
    plan = search([first, second], {"cpu": 3, "gpu": 3}, strictness=0.0)
    assert plan.units == {"cpu": 1, "gpu": 2}
    assert plan.outcome.feasible


def test_times_are_added_up_as_list_scheduling_adds_them() -> None:
    """0.1 + 0.2 + 0.3 s from a start: another sum of them is another moment, and ties fall otherwise."""
    stages = tuple(Stage(name, 1.0, 9.0) for name in ("a", "b", "c"))
    inputs = SimulationInput([repeating("b", stages, BatchRecord((0.0,), ((0.2,), (0.3,), (1.0,))), 0.0, 0.1)], 0.0)
    assert inputs.earliest_s.tolist() == schedule(inputs.complete, [1, 1, 1]).starts_s.tolist()


@given(batches(stages=3), strictnesses)
@settings(deadline=None)
def test_spared_visits_would_never_queue(open_batches: list[ExpectedBatch], strictness: float) -> None:
    inputs = SimulationInput(open_batches, strictness)
    spared = inputs.spared(frozenset(range(len(inputs.pools))))
    assert spared == frozenset(range(len(inputs.pools)))  # no request is outside all pools
    assert len(inputs.without(spared).visits) == 0


def test_a_search_from_the_last_result_simulates_less() -> None:
    batches, ceilings = search_load(2_000, chance=np.random.default_rng(1))
    plan = search(batches, ceilings, trade=False)
    again = search(batches, ceilings, trade=False, near=plan.units)
    assert again.units == plan.units
    assert again.simulations <= plan.simulations * 2 / 3


def test_seeded_cases_against_the_cheapest_allocations() -> None:
    found = gap(seed=1, cases=300)
    print(found)  # noqa: T201  # shown with -rP: docs/algorithms/scaling.md quotes it
    assert found.sequential.infeasible == found.traded.infeasible == 0
    assert found.traded.mean <= found.sequential.mean


def test_the_gap_of_a_seed_is_always_the_same() -> None:
    assert gap(seed=5, cases=20) == gap(seed=5, cases=20) != gap(seed=6, cases=20)


def test_a_gap_needs_cases() -> None:
    with pytest.raises(ValueError, match="at least one case"):
        gap(seed=1, cases=0)
