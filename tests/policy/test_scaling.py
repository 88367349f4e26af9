"""SIMULATE and the search for few units, against an independent oracle and the laws of DistRS §5."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.ebf import EbfKey, EbfQueue
from shared.policy.scaling import (
    UNREACHED,
    BatchRecord,
    ExpectedBatch,
    Outcome,
    Stage,
    Violation,
    search,
    simulate,
)

Visit = tuple[str, int, int]
"""Batch, request, stage."""


def one_stage(arrivals: Sequence[float], lasts: Sequence[float], *, timeout_s: float, delay_s: float) -> ExpectedBatch:
    record = BatchRecord(tuple(arrivals), (tuple(lasts),))
    return ExpectedBatch("b", (Stage("run", 1.0, timeout_s, "cpu"),), record, delay_s)


class Oracle:
    """The same rules said again, slowly: a list of moments, the real EBF queue, nothing clever. Times are integers."""

    def __init__(self, batches: Sequence[ExpectedBatch], units: Mapping[str, int]) -> None:
        self.batches = {batch.batch: batch for batch in batches}
        self.free = dict(units)
        self.queues: dict[str, EbfQueue[Visit]] = {pool: EbfQueue() for pool in units}
        self.running: dict[Visit, float] = {}
        self.ready: dict[Visit, float] = {}
        self.start: dict[Visit, float] = {}
        self.end: dict[Visit, float] = {}
        for batch in batches:
            for index in range(batch.record.size):
                first = self.following((batch.batch, index, -1))
                if first is not None:
                    self.ready[first] = batch.first_arrival_s + batch.record.arrivals_s[index]
        self.run()

    def following(self, visit: Visit) -> Visit | None:
        batch, index, stage = visit
        rows = self.batches[batch].record.executions_s
        return next(((batch, index, j) for j in range(stage + 1, len(rows)) if not math.isnan(rows[j][index])), None)

    def lasts(self, visit: Visit) -> float:
        return self.batches[visit[0]].record.executions_s[visit[2]][visit[1]]

    def stage(self, visit: Visit) -> Stage:
        return self.batches[visit[0]].stages[visit[2]]

    def key(self, visit: Visit) -> EbfKey:
        batch = self.batches[visit[0]]
        arrival = batch.first_arrival_s + batch.record.arrivals_s[visit[1]]
        return EbfKey(batch.completion_s, 0.0, (round(arrival * 1e6), visit[1]))

    def run(self) -> None:
        pending = dict(self.ready)
        while pending or self.running:
            now = min([*pending.values(), *self.running.values()])
            for visit in [visit for visit, end in self.running.items() if end == now]:
                del self.running[visit]
                self.end[visit] = now
                self.free[self.stage(visit).drawn_from] += self.stage(visit).units
                after = self.following(visit)
                if after is not None:
                    self.ready[after] = pending[after] = now
            for visit in sorted(visit for visit, ready in pending.items() if ready == now):
                del pending[visit]
                self.queues[self.stage(visit).drawn_from].push(self.key(visit), visit)
            for pool, queue in self.queues.items():
                while queue and self.free[pool] >= self.stage(queue.peek()[1]).units:
                    visit = queue.pop()[1]
                    self.free[pool] -= self.stage(visit).units
                    self.start[visit], self.running[visit] = now, now + self.lasts(visit)

    def delays(self) -> dict[str, float]:
        ends = {name: [end for visit, end in self.end.items() if visit[0] == name] for name in self.batches}
        stuck = {visit[0] for queue in self.queues.values() for visit in queue}
        return {
            name: math.inf if name in stuck else max(0.0, max(ends[name], default=0.0) - batch.completion_s)
            for name, batch in self.batches.items()
        }

    def feasible(self, strictness: float) -> bool:
        for visit, start in self.start.items():
            batch = self.batches[visit[0]]
            latest = start + strictness * sum(stage.timeout_s for stage in batch.stages[visit[2] :])
            if start > self.ready[visit] and latest > batch.completion_s + batch.max_extra_delay_s:
                return False
        return all(late <= self.batches[name].max_extra_delay_s for name, late in self.delays().items())

    def peak(self, pool: str) -> int:
        mine = [visit for visit in self.start if self.stage(visit).drawn_from == pool and self.lasts(visit) > 0]
        return max(
            (sum(self.stage(v).units for v in mine if self.start[v] <= self.start[at] < self.end[v]) for at in mine),
            default=0,
        )


whole = st.integers(0, 12).map(float)


@st.composite
def batches(draw: st.DrawFn, *, units: int = 2, stages: int = 2, most: int = 2) -> list[ExpectedBatch]:
    drawn = []
    for number in range(draw(st.integers(1, most))):
        steps = tuple(
            Stage(f"s{j}", draw(st.sampled_from([1.0, 4.0])), 12.0, draw(st.sampled_from(["cpu", "gpu"])),
                  draw(st.integers(1, units)))
            for j in range(draw(st.integers(1, stages)))
        )  # fmt: skip
        size = draw(st.integers(1, 6))
        reached = [draw(st.integers(1, len(steps))) for _ in range(size)]
        rows = tuple(
            tuple(float(draw(st.integers(1, 12))) if j < reached[i] else UNREACHED for i in range(size))
            for j in range(len(steps))
        )
        arrivals = tuple(draw(whole) for _ in range(size))
        record = BatchRecord(arrivals, rows)
        drawn.append(ExpectedBatch(f"b{number}", steps, record, draw(whole), draw(whole)))
    return drawn


pool_units = st.fixed_dictionaries({"cpu": st.integers(2, 6), "gpu": st.integers(2, 6)})
strictnesses = st.sampled_from([0.0, 0.5, 1.0])


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
        assert units == 0 or not Oracle(open_batches, {**plan.units, pool: units - 1}).feasible(strictness)


@given(batches(), pool_units, strictnesses)
@settings(deadline=None)
def test_a_plan_tells_what_a_simulation_of_it_would(
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


def test_the_dearest_pool_is_made_smallest_first() -> None:
    record = BatchRecord((0.0, 0.0, 0.0, 0.0), ((3.0,) * 4, (2.0,) * 4))
    stages = (Stage("compile", 1.0, 10.0, "cpu"), Stage("run", 8.0, 10.0, "gpu"))
    alone = [ExpectedBatch("b", stages, record, 6.0)]
    plan = search(alone, {"cpu": 8, "gpu": 8}, strictness=0.0)
    assert plan.units == {"cpu": 2, "gpu": 1}
    assert plan.units["cpu"] * 1.0 + plan.units["gpu"] * 8.0 == optimum(alone, {"cpu": 8, "gpu": 8})


def test_a_unit_more_can_lengthen_a_batch_of_several_stages() -> None:
    """With two cores the last request is prepared sooner, takes the second GPU, and the longest has to wait for it."""
    stages = (Stage("prepare", 1.0, 9.0, "cpu"), Stage("run", 1.0, 9.0, "gpu"))
    record = BatchRecord((1.0, 3.0, 3.0), ((2.0, 2.0, 1.0), (3.0, 4.0, 2.0)))
    alone = [ExpectedBatch("b", stages, record, 0.0)]
    delays = [simulate(alone, {"cpu": cpu, "gpu": 2}, strictness=0.0).extra_delay_s["b"] for cpu in (1, 2, 3)]
    assert delays == [0.0, 1.0, 1.0]


def test_stages_that_share_cores_and_never_meet_need_them_once() -> None:
    record = BatchRecord((0.0, 0.0), ((5.0, 5.0), (5.0, 5.0)))
    stages = (Stage("compile", 1.0, 5.0, "cpu"), Stage("run", 1.0, 5.0, "cpu"))
    plan = search([ExpectedBatch("b", stages, record, 0.0)], {"cpu": 16})
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
    long = ExpectedBatch("long", stages, BatchRecord((0.0, 0.0), ((2.0, 20.0),)), 30.0)
    short = ExpectedBatch("short", stages, BatchRecord((0.0,), ((3.0,),)), 0.0, 1.0)
    delays = simulate([long, short], {"cpu": 1}, strictness=0.0).extra_delay_s
    assert delays == {"long": 5.0, "short": 1.0}  # the short one waits for what runs (0-2), then passes the 20 s


def test_a_head_that_does_not_fit_is_not_passed() -> None:
    stages = (Stage("wide", 1.0, 9.0, "cpu", 2),)
    narrow = (Stage("narrow", 1.0, 9.0, "cpu", 1),)
    first = ExpectedBatch("first", narrow, BatchRecord((0.0,), ((3.0,),)), 9.0)
    head = ExpectedBatch("head", stages, BatchRecord((1.0,), ((3.0,),)), 9.0)
    behind = ExpectedBatch("behind", narrow, BatchRecord((1.0,), ((9.0,),)), 9.0)
    assert simulate([first, head, behind], {"cpu": 2}).extra_delay_s == {"first": 0.0, "head": 2.0, "behind": 5.0}


def test_where_the_ceiling_is_not_enough_it_is_returned_with_what_is_wrong() -> None:
    batch = one_stage((0.0,) * 4, (2.0,) * 4, timeout_s=10.0, delay_s=1.0)
    plan = search([batch], {"cpu": 2}, strictness=0.0)
    assert plan.units == {"cpu": 2}
    assert plan.outcome.violation == Violation("b", "run", "delay", 1.0)
    assert plan.outcome.extra_delay_s == {"b": 2.0}


def test_a_stage_wider_than_its_pool_never_runs() -> None:
    record = BatchRecord((0.0,), ((1.0,),))
    wide = ExpectedBatch("b", (Stage("run", 1.0, 1.0, "cpu", 4),), record, 1.0)
    plan = search([wide], {"cpu": 2})
    assert plan.outcome.extra_delay_s == {"b": math.inf}
    assert plan.outcome.violation is not None
    assert plan.outcome.violation.late_s == math.inf


@pytest.mark.parametrize("record", [BatchRecord((), ((),)), BatchRecord((0.0, 5.0), ((UNREACHED, UNREACHED),))])
def test_a_batch_that_ran_nothing_needs_nothing(record: BatchRecord) -> None:
    idle = ExpectedBatch("b", (Stage("run", 1.0, 1.0, "cpu"),), record, 0.0)
    plan = search([idle], {"cpu": 4})
    assert plan.units == {"cpu": 0}
    assert plan.outcome == Outcome(None, {"b": 0.0}, {"cpu": 0}, {("b", "run"): 0})


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
    batch = ExpectedBatch("b", (Stage("run", 1.0, 1.0),) * 2, BatchRecord((0.0,), ((1.0,),)), 0.0)
    with pytest.raises(ValueError, match="one row of execution times for each stage"):
        search([batch], {"run": 1})
