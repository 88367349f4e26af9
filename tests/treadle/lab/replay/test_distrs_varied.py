"""Workloads of many shapes: batches much longer or shorter than those before them, through the virtual mesh."""

from __future__ import annotations

import numpy as np

from shared.policy.scaling.config import PlannerConfig
from treadle.lab.replay.distrs.evaluation import PolicyRun, run
from treadle.lab.replay.distrs.planner_policy import PlannerPolicy
from treadle.lab.replay.distrs.trace import RewardTrace
from treadle.lab.replay.distrs.varied import varied


def drawn(seed: int, **sizes: int) -> RewardTrace:
    return varied(np.random.default_rng(seed), **sizes)


def planned(seed: int, **sizes: int) -> PolicyRun:
    trace = drawn(seed, **sizes)
    return run(trace, PlannerPolicy("treadle", trace, PlannerConfig(explains=False), seed))


def test_a_batch_that_is_unlike_its_past_is_not_minutes_late() -> None:
    """Five tasks, three stages, D of 3 and 5 s. With T frozen at the first request, and arrivals expected at the past's
    pace, the worst batches were 127 s and 123 s late, the mean was 3.9 s, and the cost 1.61 and 1.16 times the work.
    """
    for seed, most in ((116, 1.61), (119, 1.30)):
        trace, made = drawn(seed, tasks=5, stages=3), planned(seed, tasks=5, stages=3)
        costs = np.array([stage.worker_cost for stage in trace.stages])
        assert made.worst_delay_s < 30.0
        assert made.mean_delay_s < 2.0
        assert made.worker_s @ costs / (made.busy_s @ costs) < most


def test_a_seed_gives_the_same_workload_and_another_another() -> None:
    one, same, other = drawn(1), drawn(1), drawn(2)
    assert one.stages == same.stages != other.stages
    for task, again in zip(one.tasks, same.tasks, strict=True):
        for batch, twin in zip(task.batches, again.batches, strict=True):
            np.testing.assert_array_equal(batch.arrivals_s, twin.arrivals_s)
            np.testing.assert_array_equal(batch.executions_s, twin.executions_s)


def test_no_execution_is_longer_than_its_timeout_and_a_request_that_stops_stays_stopped() -> None:
    for seed in range(1, 11):
        trace = drawn(seed)
        for batch in (batch for task in trace.tasks for batch in task.batches):
            for stage, row in zip(trace.stages, batch.executions_s, strict=True):
                assert not (row > stage.timeout_s).any()
            stopped = np.isnan(batch.executions_s)
            assert not (stopped[:-1] & ~stopped[1:]).any()
            assert not stopped[0].any()
