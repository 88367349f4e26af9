"""The virtual mesh: its executions and their times, its reported costs and delays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.policy.scaling.list_scheduling import Counts
from shared.policy.scaling.workload import ExpectedBatch, repeating
from tests.shared.policy.scaling.scaling_oracle import Oracle
from tests.treadle.lab.replay.mesh import STAGES, ExecutedStage, RecordingCluster, ScriptedPolicy, held, scripts, traces
from treadle.lab.replay.distrs.evaluation import FixedWorkers
from treadle.lab.replay.distrs.policy import Decision, Event, OpenBatchView
from treadle.lab.replay.distrs.simulated_cluster import CompletedBatch, SimulatedCluster, record_of
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch, TracedTask


def batch_of(trace: RewardTrace, one: CompletedBatch | ExecutedStage) -> TracedBatch:
    return trace.tasks[one.task].batches[one.index if isinstance(one, CompletedBatch) else one.batch]


def expected_runs(trace: RewardTrace) -> Counter[tuple[int, int, int, int, float]]:
    """(task, batch, request, stage, seconds) of all that must run."""
    return Counter(
        (task, index, int(request), int(stage), float(batch.executions_s[stage, request]))
        for task, traced in enumerate(trace.tasks)
        for index, batch in enumerate(traced.batches)
        for stage, request in np.argwhere(~np.isnan(batch.executions_s))
        if index
    )


@given(traces(open_loop=None), scripts())
@settings(deadline=None)
def test_everything_runs_once_for_its_time_in_order_and_nothing_waits_beside_a_free_worker(
    trace: RewardTrace, policy: ScriptedPolicy
) -> None:
    cluster = RecordingCluster(trace, policy)
    ran = cluster.ran()
    assert Counter((one.task, one.batch, one.request, one.stage, one.end - one.start) for one in ran) == expected_runs(
        trace
    )
    opened = {(done.task, done.index): done.opened_s for done in cluster.costs.done}
    ends = {(one.task, one.batch, one.request, one.stage): one.end for one in ran}
    for one in ran:
        arrival = opened[one.task, one.batch] + float(batch_of(trace, one).arrivals_s[one.request])
        assert one.ready == ends.get((one.task, one.batch, one.request, one.stage - 1), arrival)
        assert one.ready <= one.start
        if policy.by_arrival:
            assert one.key == arrival
    pools = {one.pool for one in ran}
    for mine in ([one for one in ran if one.pool == pool] for pool in pools):
        for now in sorted({one.ready for one in mine} | {one.start for one in mine} | {one.end for one in mine}):
            running = sum(one.start <= now < one.end for one in mine)
            waiting = [one for one in mine if one.ready <= now < one.start]
            begun = [one for one in mine if one.start == now]
            assert not waiting or running >= policy.at(now)[mine[0].stage]
            assert all(first.key <= other.key for first in begun for other in waiting)


@given(traces(open_loop=None), scripts())
@settings(deadline=None)
def test_the_ledger_reports_held_executed_and_delayed_seconds(trace: RewardTrace, policy: ScriptedPolicy) -> None:
    """Held units are the larger of target and running ones, second by second until the last batch is complete."""
    cluster = RecordingCluster(trace, policy)
    ran = cluster.ran()
    costs = cluster.costs
    over = max(done.complete_s for done in costs.done)
    began = min(at for at, _ in policy.asked)
    for pool in range(len(costs.unit_s)):
        stage, mine = pool % len(STAGES), [one for one in ran if one.pool == pool]
        assert costs.unit_s[pool] == sum(
            max(policy.at(now)[stage] if now >= began else 0, sum(one.start <= now < one.end for one in mine))
            for now in range(int(over))
        )
    for stage in range(len(STAGES)):
        assert costs.busy_s[stage] == sum(one.end - one.start for one in ran if one.stage == stage)
    for done in costs.done:
        batch = batch_of(trace, done)
        ends = [one.end for one in ran if (one.task, one.batch) == (done.task, done.index)]
        assert done.complete_s == max([done.opened_s + float(batch.arrivals_s[-1]), *ends])
        spans = [at + sum(time for time in times if time == time)
                 for at, *times in zip(batch.arrivals_s, *batch.executions_s, strict=True)]  # fmt: skip
        assert done.extra_delay_s == done.complete_s - done.opened_s - max(spans) >= 0


@given(traces(open_loop=None), scripts())
@settings(deadline=None)
def test_batches_open_at_their_moment_or_a_gap_after_the_one_before(trace: RewardTrace, policy: ScriptedPolicy) -> None:
    done = {(one.task, one.index): one for one in SimulatedCluster(trace, policy).run().done}
    assert len(done) == sum(len(task.batches) - 1 for task in trace.tasks)
    for (task, index), one in done.items():
        before, batch = trace.tasks[task].batches[index - 1 : index + 1]
        if batch.start_s is not None:
            assert one.opened_s == batch.start_s
        elif index > 1:
            assert one.opened_s == done[task, index - 1].complete_s + batch.gap_s
        elif before.start_s is None:  # its history is over as it would begin
            assert one.opened_s == before.gap_s + batch.gap_s


@given(traces(open_loop=None), scripts())
@settings(deadline=None)
def test_the_policy_is_asked_when_it_wishes_and_at_each_turn_of_a_batch(
    trace: RewardTrace, policy: ScriptedPolicy
) -> None:
    done = SimulatedCluster(trace, policy).run().done
    over = max(one.complete_s for one in done)
    asked = Counter(policy.asked)
    for one in done:
        arrival = one.opened_s + float(batch_of(trace, one).arrivals_s[0])
        assert min(asked[one.opened_s, "opened"], asked[arrival, "arrived"], asked[one.complete_s, "complete"]) > 0
    began = min(at for at, _ in policy.asked)
    assert {at for at, _ in asked} >= {at for at in policy.script if began < at < over}


@given(traces(open_loop=None), scripts(), st.booleans())
@settings(deadline=None)
def test_a_policy_sees_what_has_come_waits_and_runs(
    trace: RewardTrace, policy: ScriptedPolicy, knows_all: bool
) -> None:
    """A start at the same moment may be seen before or after it."""
    policy.knows_all = knows_all
    ran = RecordingCluster(trace, policy)
    mine = ran.ran()
    opened = {(done.task, done.index): done.opened_s for done in ran.costs.done}
    for now, view in policy.views:
        seen, batch = view.seen, trace.tasks[view.task].batches[view.index]
        arrivals = opened[view.task, view.index] + batch.arrivals_s
        assert (seen.size, seen.opened_s) == (batch.size, opened[view.task, view.index])
        assert seen.arrived == sum(arrivals <= now)
        assert seen.first_arrival_s == (arrivals[0] if arrivals[0] <= now else None)
        assert len(view.past) == len(view.gaps_s) > 0
        for stage in range(len(STAGES)):
            here = [one for one in mine if (one.task, one.batch, one.stage) == (view.task, view.index, stage)]
            waits, runs = (list(map(tuple, rows[stage].tolist())) for rows in (seen.queuing, seen.running))
            unqueued = arrivals + np.nansum(batch.executions_s[:stage], axis=0)
            some = [one.request for one in here if one.ready <= now <= one.start]
            assert set(waits) <= {(arrivals[one], unqueued[one]) for one in some}
            under_way = [one for one in here if one.start <= now < one.end]
            assert set(runs) <= {(arrivals[one.request], unqueued[one.request], one.start) for one in under_way}
            assert len(waits) + len(runs) == sum(one.ready <= now < one.end for one in here)
        if view.truth is not None:
            ends = view.truth.ready_s + np.nansum(view.truth.executions_s, axis=0)
            ideal = float((batch.arrivals_s + np.nansum(batch.executions_s, axis=0)).max())
            assert now + ends.max(initial=0.0) >= min(now, opened[view.task, view.index] + ideal)
        assert (view.truth is not None) == knows_all


@given(traces(tasks=1), held)
@settings(deadline=None)
def test_one_task_with_fixed_workers_has_the_oracles_delay(trace: RewardTrace, workers: tuple[int, ...]) -> None:
    done = SimulatedCluster(trace, FixedWorkers(workers, by_arrival=False)).run().done
    units = dict(zip((stage.name for stage in STAGES), workers, strict=True))
    for one, batch in zip(done, trace.tasks[0].batches[1:], strict=True):
        alone = repeating("b", STAGES, record_of(batch), 0.0)
        assert one.extra_delay_s == Oracle([alone], units).delays()["b"]


@given(traces(batches=2, open_loop=True), held)
@settings(deadline=None)
def test_overlapping_batches_have_the_oracles_delays(trace: RewardTrace, workers: tuple[int, ...]) -> None:
    """T of the dispatcher: the first arrival and the span of the batch before."""
    expected = []
    for task in trace.tasks:
        before, batch = task.batches
        assert batch.start_s is not None
        first = batch.start_s + float(batch.arrivals_s[0])
        requests = repeating(task.task, STAGES, record_of(batch), 0.0, first).requests
        expected.append(ExpectedBatch(task.task, STAGES, requests, 0.0, first + record_of(before).span_s))
    assume(len({other.completion_s for other in expected}) == len(expected))
    oracle = Oracle(expected, dict(zip((stage.name for stage in STAGES), workers, strict=True)))
    for one in SimulatedCluster(trace, FixedWorkers(workers, by_arrival=False)).run().done:
        batch = batch_of(trace, one)
        last = max((end for visit, end in oracle.end.items() if visit[0] == trace.tasks[one.task].task), default=0.0)
        assert one.complete_s == max(last, one.opened_s + float(batch.arrivals_s[-1]))


def batch(*requests: tuple[float, ...], gap_s: float = 0.0) -> TracedBatch:
    """Batch of requests (arrival, seconds of each stage that it reached)."""
    rows = np.full((len(STAGES), len(requests)), np.nan)
    for number, (_, *times) in enumerate(requests):
        rows[: len(times), number] = times
    return TracedBatch(np.array([one[0] for one in requests]), rows, gap_s=gap_s)


def task(*batches: TracedBatch) -> RewardTrace:
    return RewardTrace(STAGES, 3.0, (TracedTask("t", batches),))


def test_a_batch_whose_requests_reach_no_stage_is_complete_at_its_last_arrival() -> None:
    past = batch((1.0, 2.0, 3.0))
    (done,) = (
        SimulatedCluster(task(past, batch((2.0,), (9.0,), gap_s=5.0)), FixedWorkers((1, 1), by_arrival=False))
        .run()
        .done
    )
    assert (done.opened_s, done.complete_s, done.extra_delay_s) == (5.0, 14.0, 0.0)


def test_a_last_request_answered_at_once_completes_the_batch() -> None:
    (done,) = (
        SimulatedCluster(task(batch((1.0, 2.0)), batch((2.0, 3.0), (9.0,))), FixedWorkers((1, 1), by_arrival=False))
        .run()
        .done
    )
    assert (done.complete_s, done.extra_delay_s) == (9.0, 0.0)


def test_shrinking_ends_nothing_and_costs_until_it_ends() -> None:
    policy = ScriptedPolicy({0: (3, 1), 4: (1, 1)})
    cluster = RecordingCluster(task(batch((1.0, 2.0)), batch((1.0, 10.0), (1.0, 6.0), (2.0, 5.0), (2.0, 1.0))), policy)
    ran = cluster.ran()
    assert [(one.start, one.end) for one in ran] == [(1.0, 11.0), (1.0, 7.0), (2.0, 7.0), (11.0, 12.0)]
    assert cluster.costs.unit_s.tolist() == [4 * 3 + 3 * 3 + 5 * 1, 12.0]


def test_nothing_is_paid_after_the_last_batch() -> None:
    """The policy would like another look at 1000 s, and holds what it holds."""
    costs = SimulatedCluster(
        task(batch((1.0, 2.0)), batch((1.0, 4.0))), ScriptedPolicy({0: (2, 1), 1000: (9, 9)})
    ).run()
    assert costs.unit_s.tolist() == [10.0, 5.0]


def test_a_policy_without_workers_or_wake_up_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="fixed holds no worker for waiting requests"):
        SimulatedCluster(task(batch((1.0, 2.0)), batch((1.0, 4.0))), FixedWorkers((0, 1), by_arrival=False)).run()


def test_a_policy_without_workers_that_wakes_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.lab.replay.distrs.simulated_cluster.MAX_REVIEWS", 1_000)

    class Hopeful(FixedWorkers):
        def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:
            return replace(super().decide(now, event, open_batches, busy), wake_s=now + 10.0)

    with pytest.raises(RuntimeError, match="holds no worker for waiting requests after 1,000 reviews"):
        SimulatedCluster(task(batch((1.0, 2.0)), batch((1.0, 4.0))), Hopeful((0, 1), by_arrival=False)).run()
