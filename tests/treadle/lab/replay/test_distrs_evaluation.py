"""The figures of the evaluation: ratios, fewest workers, and the value of each part of our planner."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from treadle.lab.replay.distrs.ablations import ABLATIONS, CONDITIONS, variant
from treadle.lab.replay.distrs.evaluation import FixedWorkers, OrderCurve, PolicyRun, fewest_with, order_matters, run
from treadle.lab.replay.distrs.generate import generate
from treadle.lab.replay.distrs.policies import lineup


def outcome(worker_s: list[float], busy_s: list[float], delays_s: list[float]) -> PolicyRun:
    return PolicyRun("p", ("a", "b"), np.array(worker_s), np.array(busy_s), np.array(delays_s), np.zeros((0, 2)), [])


def test_a_run_reports_held_and_executed_units() -> None:
    document = outcome([30.0, 8.0], [10.0, 8.0], [0.0, 0.0, 1.0, 3.0]).document()
    assert document["normalised"] == {"a": 3.0, "b": 1.0}
    assert document["worker_seconds"] == {"a": 30.0, "b": 8.0}
    assert document["extra_delay_s"] == {"mean": 1.0, "p50": 0.5, "p99": pytest.approx(2.94), "max": 3.0}


def test_nothing_executed_has_no_ratio_and_no_batch_no_delay() -> None:
    found = outcome([30.0, 0.0], [0.0, 0.0], [])
    assert all(math.isnan(ratio) for ratio in found.normalised)
    assert found.document()["normalised"] == {"a": None, "b": None}
    assert found.document()["extra_delay_s"] == {"mean": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    json.dumps(found.document(), allow_nan=False)


def test_the_fewest_workers_are_those_from_which_on_the_delay_stays_low() -> None:
    """More workers may lengthen a batch again (Graham's anomalies), so a low delay once is not enough."""
    assert fewest_with([1, 2, 3, 4, 5], [9.0, 2.0, 5.0, 3.0, 0.0], 3.0) == 4
    assert fewest_with([1, 2], [9.0, 8.0], 3.0) is None


def test_ebf_is_compared_where_both_orders_reach_the_delay() -> None:
    curve = OrderCurve([2, 3, 4, 6], [9.0, 1.0, 0.0, 0.0], [9.0, 9.0, 5.0, 1.0])
    assert curve.times_fewer(3.0) == 2.0
    assert curve.times_fewer(0.5) is None


def test_in_ebf_order_two_batches_never_need_more_workers_for_a_low_delay() -> None:
    for seed in range(4):
        trace = generate(np.random.default_rng(seed), architecture="colocated", tasks=1, iterations=3, size=256)
        curve = order_matters(trace)
        assert curve.workers == sorted(set(curve.workers))
        assert (curve.ebf_s[-1], curve.fcfs_s[-1]) == (0.0, 0.0)
        fewer = curve.times_fewer(3.0)
        assert fewer is not None
        assert fewer >= 1.0


def test_plenty_of_fixed_workers_never_queue() -> None:
    trace = generate(np.random.default_rng(1), architecture="colocated", tasks=2, iterations=3, size=16)
    assert run(trace, FixedWorkers((64, 64), by_arrival=True)).mean_delay_s == pytest.approx(0.0)


def test_every_ablation_runs_and_the_whole_planner_is_the_one_of_the_lineup() -> None:
    for condition, name in ABLATIONS:
        trace = CONDITIONS[condition].trace(np.random.default_rng(1), 2, 3, 24)
        found = run(trace, variant(name, trace, 1))
        assert len(found.delays_s) == 4
        if name in ("distrs", "treadle"):
            whole = next(policy for policy in lineup(trace, 1) if policy.name == name)
            assert found.document() == run(trace, whole).document()


def test_progress_helps_where_the_pace_of_rollouts_varies() -> None:
    """Over sixteen seeds together: over six, one batch decides now that delays are short (0.37 s against 0.36 s)."""
    delays = dict.fromkeys(("treadle", "treadle without progress"), 0.0)
    (condition,) = [one for one in CONDITIONS if "pace" in one]
    for seed in range(16):
        trace = CONDITIONS[condition].trace(np.random.default_rng(seed), 2, 4, 256)
        for name in delays:
            delays[name] += run(trace, variant(name, trace, seed)).mean_delay_s
    assert delays["treadle"] < delays["treadle without progress"]
