"""SIMULATE and the search for few units, against an independent oracle and the laws of DistRS §5."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.search import (
    UNREACHED,
    BatchRecord,
    ExpectedBatch,
    Outcome,
    Stage,
    Violation,
    repeating,
    search,
    simulate,
)
from tests.shared.policy.scaling.scaling_oracle import Oracle, batches, least, pool_units, strictnesses


def one_stage(arrivals: Sequence[float], lasts: Sequence[float], *, timeout_s: float, delay_s: float) -> ExpectedBatch:
    record = BatchRecord(tuple(arrivals), (tuple(lasts),))
    return repeating("b", (Stage("run", 1.0, timeout_s, "cpu"),), record, delay_s)


@given(batches(), pool_units, strictnesses)
@settings(deadline=None)
def test_a_simulation_agrees_with_the_oracle(
    open_batches: list[ExpectedBatch], units: dict[str, int], strictness: float
) -> None:
    oracle = Oracle(open_batches, units)
    simulated = simulate(open_batches, units, strictness=strictness)
    assert simulated.extra_delay_s == pytest.approx(oracle.delays())
    assert simulated.feasible == oracle.feasible(strictness)
    assert simulated.peak_units == {pool: oracle.peak(pool) for pool in simulated.peak_units}


@given(batches(), pool_units, strictnesses)
@settings(deadline=None)
def test_a_found_plan_is_feasible_and_no_single_pool_can_lose_a_unit(
    open_batches: list[ExpectedBatch], ceilings: dict[str, int], strictness: float
) -> None:
    plan = search(open_batches, ceilings, strictness=strictness)
    assert plan.outcome.feasible == Oracle(open_batches, dict(plan.units)).feasible(strictness)
    if not plan.outcome.feasible:
        assert plan.units == {pool: ceilings[pool] for pool in plan.units}
        return
    for pool, units in plan.units.items():
        fewer = {**plan.units, pool: units - 1}
        assert units == least(open_batches, pool) or not Oracle(open_batches, fewer).feasible(strictness)


@given(batches(), pool_units, strictnesses)
@settings(deadline=None)
def test_a_plan_reports_the_results_of_its_simulation(
    open_batches: list[ExpectedBatch], ceilings: dict[str, int], strictness: float
) -> None:
    plan = search(open_batches, ceilings, strictness=strictness)
    assert plan.outcome == simulate(open_batches, plan.units, strictness=strictness)


@given(batches(units=1, stages=1), pool_units)
@settings(deadline=None)
def test_with_one_stage_and_one_batch_the_search_finds_the_optimum(
    open_batches: list[ExpectedBatch], ceilings: dict[str, int]
) -> None:
    alone = open_batches[:1]
    plan = search(alone, ceilings, strictness=1.0)
    (pool,) = plan.units
    fewest = next((n for n in range(1, ceilings[pool] + 1) if Oracle(alone, {pool: n}).feasible(1.0)), None)
    assert (plan.units[pool] if plan.outcome.feasible else None) == fewest


@given(batches(units=1, stages=1, most=1), st.integers(1, 6))
@settings(deadline=None)
def test_with_one_stage_more_units_never_lengthen_a_batch(open_batches: list[ExpectedBatch], units: int) -> None:
    (pool,) = {stage.drawn_from for stage in open_batches[0].stages}
    fewer, more = (simulate(open_batches, {pool: n}).extra_delay_s["b0"] for n in (units, units + 1))
    assert more <= fewer


@given(batches(), strictnesses)
@settings(deadline=None)
def test_units_without_end_leave_nothing_waiting(open_batches: list[ExpectedBatch], strictness: float) -> None:
    plenty = simulate(open_batches, {"cpu": 100, "gpu": 100}, strictness=strictness)
    assert plenty.feasible
    assert set(plenty.extra_delay_s.values()) == {0.0}


def optimum(alone: list[ExpectedBatch], ceilings: Mapping[str, int]) -> float:
    """Cheapest feasible allocation by trying all."""
    cost = {stage.drawn_from: stage.worker_cost / stage.units for stage in alone[0].stages}
    return min(
        sum(n * cost[pool] for pool, n in zip(cost, counts, strict=True))
        for counts in itertools.product(*(range(1, ceilings[pool] + 1) for pool in cost))
        if Oracle(alone, dict(zip(cost, counts, strict=True))).feasible(0.0)
    )


def test_the_most_expensive_pool_is_made_smallest_first() -> None:
    record = BatchRecord((0.0, 0.0, 0.0, 0.0), ((3.0,) * 4, (2.0,) * 4))
    stages = (Stage("compile", 1.0, 10.0, "cpu"), Stage("run", 8.0, 10.0, "gpu"))
    alone = [repeating("b", stages, record, 6.0)]
    plan = search(alone, {"cpu": 8, "gpu": 8}, strictness=0.0)
    assert plan.units == {"cpu": 2, "gpu": 1}
    assert plan.units["cpu"] * 1.0 + plan.units["gpu"] * 8.0 == optimum(alone, {"cpu": 8, "gpu": 8})


def test_a_unit_more_can_lengthen_a_batch_of_several_stages() -> None:
    """With two cores the last request is prepared sooner and takes the second GPU; the longest waits for it."""
    stages = (Stage("prepare", 1.0, 9.0, "cpu"), Stage("run", 1.0, 9.0, "gpu"))
    record = BatchRecord((1.0, 3.0, 3.0), ((2.0, 2.0, 1.0), (3.0, 4.0, 2.0)))
    alone = [repeating("b", stages, record, 0.0)]
    delays = [simulate(alone, {"cpu": cpu, "gpu": 2}, strictness=0.0).extra_delay_s["b"] for cpu in (1, 2, 3)]
    assert delays == [0.0, 1.0, 1.0]


def test_stages_that_share_cores_and_never_meet_need_them_once() -> None:
    record = BatchRecord((0.0, 0.0), ((5.0, 5.0), (5.0, 5.0)))
    stages = (Stage("compile", 1.0, 5.0, "cpu"), Stage("run", 1.0, 5.0, "cpu"))
    plan = search([repeating("b", stages, record, 0.0)], {"cpu": 16})
    assert plan.units == {"cpu": 2}
    assert plan.outcome.peak_workers == {("b", "compile"): 2, ("b", "run"): 2}


ARRIVALS = (0.0, 1.0, 2.0, 4.0, 12.0)
LAST_BATCH = (4.0, 4.0, 2.0, 3.0, 3.0)
THIS_BATCH = (4.0, 4.0, 12.0, 3.0, 3.0)


def test_figure_9a_by_the_last_batch_two_workers_are_enough() -> None:
    batch = one_stage(ARRIVALS, LAST_BATCH, timeout_s=12.0, delay_s=0.0)
    plan = search([batch], {"cpu": 5}, strictness=0.0)
    assert plan.units == {"cpu": 2}
    assert plan.outcome.extra_delay_s == {"b": 0.0}


def test_figure_9b_a_longer_request_is_late_with_two_workers() -> None:
    batch = one_stage(ARRIVALS, THIS_BATCH, timeout_s=12.0, delay_s=0.0)
    late = simulate([batch], {"cpu": 2}, strictness=0.0)
    assert late.violation == Violation("b", "run", "delay", 1.0)
    assert late.extra_delay_s == {"b": 1.0}


def test_figure_9c_the_timeout_aware_rule_asks_for_the_third_worker_beforehand() -> None:
    batch = one_stage(ARRIVALS, LAST_BATCH, timeout_s=12.0, delay_s=0.0)
    plan = search([batch], {"cpu": 5})
    assert plan.units == {"cpu": 3}
    violation = simulate([batch], {"cpu": 2}).violation
    assert violation is not None
    assert (violation.stage, violation.rule) == ("run", "timeout")
    assert violation.late_s == pytest.approx(1.0)
    longer = one_stage(ARRIVALS, THIS_BATCH, timeout_s=12.0, delay_s=0.0)
    assert simulate([longer], plan.units, strictness=0.0).feasible


def test_the_rule_spares_a_request_that_never_waits() -> None:
    batch = one_stage((0.0, 9.0), (1.0, 1.0), timeout_s=100.0, delay_s=0.0)
    assert simulate([batch], {"cpu": 1}).feasible


def test_of_two_batches_the_one_that_could_be_complete_earlier_is_served_first() -> None:
    stages = (Stage("run", 1.0, 10.0, "cpu"),)
    long = repeating("long", stages, BatchRecord((0.0, 0.0), ((2.0, 20.0),)), 30.0)
    short = repeating("short", stages, BatchRecord((0.0,), ((3.0,),)), 0.0, 1.0)
    delays = simulate([long, short], {"cpu": 1}, strictness=0.0).extra_delay_s
    assert delays == {"long": 5.0, "short": 1.0}  # the short one waits for what runs (0-2), then passes the 20 s


def test_a_head_that_does_not_fit_is_not_passed() -> None:
    stages = (Stage("wide", 1.0, 9.0, "cpu", 2),)
    narrow = (Stage("narrow", 1.0, 9.0, "cpu", 1),)
    first = repeating("first", narrow, BatchRecord((0.0,), ((3.0,),)), 9.0)
    head = repeating("head", stages, BatchRecord((1.0,), ((3.0,),)), 9.0)
    behind = repeating("behind", narrow, BatchRecord((1.0,), ((9.0,),)), 9.0)
    assert simulate([first, head, behind], {"cpu": 2}).extra_delay_s == {"first": 0.0, "head": 2.0, "behind": 5.0}


def test_an_insufficient_ceiling_is_returned_with_its_violation() -> None:
    batch = one_stage((0.0,) * 4, (2.0,) * 4, timeout_s=10.0, delay_s=1.0)
    plan = search([batch], {"cpu": 2}, strictness=0.0)
    assert plan.units == {"cpu": 2}
    assert plan.outcome.violation == Violation("b", "run", "delay", 1.0)
    assert plan.outcome.extra_delay_s == {"b": 2.0}


def test_a_stage_wider_than_its_pool_never_runs() -> None:
    record = BatchRecord((0.0,), ((1.0,),))
    wide = repeating("b", (Stage("run", 1.0, 1.0, "cpu", 4),), record, 1.0)
    plan = search([wide], {"cpu": 2})
    assert plan.outcome.extra_delay_s == {"b": math.inf}
    assert plan.outcome.violation is not None
    assert plan.outcome.violation.late_s == math.inf


@pytest.mark.parametrize(
    ("record", "kept"), [(BatchRecord((), ((),)), 0), (BatchRecord((0.0, 5.0), ((UNREACHED, UNREACHED),)), 1)]
)
def test_without_expected_work_a_worker_is_kept_for_an_unexpected_request(record: BatchRecord, kept: int) -> None:
    idle = repeating("b", (Stage("run", 1.0, 1.0, "cpu"),), record, 0.0)
    plan = search([idle], {"cpu": 4})
    assert plan.units == {"cpu": kept}
    assert plan.outcome == Outcome(None, {"b": 0.0}, {"cpu": 0}, {("b", "run"): 0}, {})


def test_the_span_ends_with_the_last_possible_answer() -> None:
    record = BatchRecord((0.0, 5.0, 6.0), ((9.0, 1.0, 1.0), (UNREACHED, 4.0, 1.0)))
    assert record.span_s == 10.0


@pytest.mark.parametrize(
    ("arrivals", "rows", "why"),
    [
        ((0.0, 1.0), ((1.0,),), "each stage needs 2"),
        ((-1.0,), ((1.0,),), "not before"),
        ((math.nan,), ((1.0,),), "not before"),
        ((0.0,), ((-1.0,),), "not negative"),
        ((0.0,), ((math.inf,),), "not negative"),
    ],
)
def test_a_record_that_cannot_be_is_refused(
    arrivals: tuple[float, ...], rows: tuple[tuple[float, ...], ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        BatchRecord(arrivals, rows)


def test_a_record_of_another_workflow_is_refused() -> None:
    batch = repeating("b", (Stage("run", 1.0, 1.0),) * 2, BatchRecord((0.0,), ((1.0,),)), 0.0)
    with pytest.raises(ValueError, match="one row of execution times for each stage"):
        search([batch], {"run": 1})
