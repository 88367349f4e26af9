"""Pools of the virtual mesh: cold starts, and the effect of shrinking on units that start, wait or run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.list_scheduling import Counts
from tests.treadle.lab.replay.mesh import STAGES, RecordingCluster, ScriptedPolicy, scripts, traced_batches, traces
from tests.treadle.lab.replay.test_distrs_simulated_cluster import batch
from treadle.lab.replay.distrs.pools import Pools
from treadle.lab.replay.distrs.simulated_cluster import SimulatedCluster
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch, TracedTask

COLD_S = 10.0


def pools(free: int = 0, cold_start_s: float = COLD_S) -> tuple[Pools, Counts]:
    units = np.array([free])
    return Pools(units, (cold_start_s,)), units


def test_units_are_paid_at_once_and_used_a_cold_start_later() -> None:
    pool, free = pools()
    assert pool.set(5.0, 0, 3) == 15.0
    pool.warmed(14.0, 0)
    assert (free[0], pool.busy[0]) == (0, 0)
    pool.warmed(15.0, 0)
    assert (free[0], pool.busy[0]) == (3, 0)
    pool.account(20.0)
    assert pool.unit_s[0] == 3 * 20.0


def test_units_without_a_cold_start_are_free_at_once() -> None:
    pool, free = pools(cold_start_s=0.0)
    assert pool.set(5.0, 0, 3) == math.inf
    assert free[0] == 3


def test_shrinking_stops_what_still_starts_before_what_waits() -> None:
    pool, free = pools()
    pool.set(0.0, 0, 2)
    pool.warmed(10.0, 0)
    pool.set(11.0, 0, 4)
    pool.set(12.0, 0, 5)
    assert pool.set(13.0, 0, 3) == math.inf  # the newest is gone, and one of the two before it
    assert free[0] == 2
    pool.warmed(22.0, 0)
    assert free[0] == 3
    pool.set(23.0, 0, 1)
    assert free[0] == 1


def test_a_worker_that_was_to_leave_after_its_work_is_reused_warm() -> None:
    pool, free = pools()
    pool.set(0.0, 0, 4)
    pool.warmed(10.0, 0)
    free[0] -= 4  # all of them run
    pool.set(11.0, 0, 1)
    assert (free[0], pool.busy[0]) == (-3, 4)
    assert pool.set(12.0, 0, 3) == math.inf
    assert (free[0], pool.busy[0]) == (-1, 4)
    assert pool.set(13.0, 0, 6) == 23.0
    assert (free[0], pool.busy[0]) == (0, 4)
    pool.warmed(23.0, 0)
    assert (free[0], pool.busy[0]) == (2, 4)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 6))), st.sampled_from([0.0, 3.0]))
def test_every_unit_is_free_busy_or_starting(steps: list[tuple[int, int, int]], cold_start_s: float) -> None:
    """Each step lets time pass, ends and begins some work, and sets a target."""
    pool, free = pools(cold_start_s=cold_start_s)
    now, runs = 0.0, 0
    for passed, wished, target in steps:
        now += passed
        pool.warmed(now, 0)
        runs_then = min(wished, max(runs + int(free[0]), min(runs, wished)))
        free[0] -= runs_then - runs
        runs = runs_then
        pool.set(now, 0, target)
        starting = sum(one.units for one in pool._starting[0])
        assert pool.busy[0] == runs
        assert free[0] + runs + starting == target
        assert starting == 0 or free[0] >= 0
    pool.warmed(now + cold_start_s, 0)
    assert free[0] + runs == pool.targets[0]


def cold(trace: RewardTrace, *cold_starts_s: float) -> RewardTrace:
    return replace(trace, cold_starts_s=cold_starts_s)


def one_task(*requests: tuple[float, ...]) -> RewardTrace:
    return RewardTrace(STAGES, 3.0, (TracedTask("t", (batch((1.0, 2.0)), batch(*requests))),))


def test_a_cold_start_of_each_stage_is_waited_for_and_paid() -> None:
    """The workers are asked for as the batch opens, at 0: compile can be used from 4 on, run from 9 on."""
    cluster = RecordingCluster(cold(one_task((1.0, 2.0, 1.0)), 4.0, 9.0), ScriptedPolicy({0: (2, 1)}))
    assert [(one.start, one.end) for one in cluster.ran()] == [(4.0, 6.0), (9.0, 10.0)]
    assert cluster.costs.unit_s.tolist() == [20.0, 10.0]
    assert cluster.costs.done[0].extra_delay_s == 6.0


def test_growing_helps_a_cold_start_later() -> None:
    cluster = RecordingCluster(
        cold(one_task((1.0, 6.0), (1.0, 6.0), (1.0, 6.0)), 2.0, 2.0), ScriptedPolicy({0: (1, 1), 3: (3, 1)})
    )
    assert [one.start for one in cluster.ran()] == [2.0, 5.0, 5.0]


@given(traces(open_loop=None), scripts(), st.tuples(st.integers(0, 5), st.integers(0, 5)))
@settings(deadline=None)
def test_nothing_runs_before_its_worker_is_warm_and_all_is_done(
    trace: RewardTrace, policy: ScriptedPolicy, cold_starts_s: tuple[int, ...]
) -> None:
    cluster = RecordingCluster(cold(trace, *map(float, cold_starts_s)), policy)
    ran = cluster.ran()
    began = min(at for at, _ in policy.asked)
    assert all(one.start >= began + cold_starts_s[one.stage] for one in ran)
    assert len(cluster.costs.done) == sum(len(task.batches) - 1 for task in trace.tasks)
    assert cluster.costs.unit_s.sum() >= cluster.costs.busy_s.sum() - 1e-9


@given(traced_batches(), traced_batches(), scripts())
@settings(deadline=None)
def test_no_cold_start_is_a_cold_start_of_nothing(
    before: TracedBatch, after: TracedBatch, policy: ScriptedPolicy
) -> None:
    trace = RewardTrace(STAGES, 3.0, (TracedTask("t", (before, after)),))
    with_zero = SimulatedCluster(cold(trace, 0.0, 0.0), policy).run()
    without = SimulatedCluster(trace, policy).run()
    assert with_zero.unit_s.tolist() == without.unit_s.tolist()
    assert with_zero.done == without.done
