"""Batches of MOPD and DeepSearch, and DistRS's workload with measured kernels."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.lab.replay.distrs.generate import STAGES, generate
from treadle.lab.replay.gpu.assumptions import JUDGE, TEACHERS
from treadle.lab.replay.gpu.kernels import RUN, RUNS, KernelRuns, MeasuredKernel, kernel_trace
from treadle.lab.replay.gpu.workload import JUDGE_NAME, PAPERS_DEGREE
from treadle.lab.replay.gpu.workload import generate as generate_calls

KERNELS = (MeasuredKernel(1.0, 2.0), MeasuredKernel(10.0, 10.0), MeasuredKernel(900.0, 1.0))
FEW = KernelRuns(iterations=3)


def test_teachers_execute_as_long_as_in_table_1_in_the_mean() -> None:
    batch = generate_calls(np.random.default_rng(1), "MOPD", 500)
    services = {one.name: one for one in batch.services}
    assert len(services) == TEACHERS.count
    seconds = [services[call.service].seconds(call.single_s, PAPERS_DEGREE) for call in batch.calls]
    assert np.mean(seconds) == pytest.approx(TEACHERS.act_s)
    assert [call.due_s for call in batch.calls] == sorted(call.due_s for call in batch.calls)
    assert sorted(call.trajectory for call in batch.calls) == list(range(500))


def test_searches_come_beside_the_same_batch_of_teachers() -> None:
    alone = generate_calls(np.random.default_rng(1), "MOPD", 200)
    both = generate_calls(np.random.default_rng(1), "MOPD+Search", 200)
    verdicts = [call for call in both.calls if call.service == JUDGE_NAME]
    assert tuple(call for call in both.calls if call.service != JUDGE_NAME) == alone.calls
    assert len(verdicts) == 200
    judge = both.services[-1]
    seconds = [judge.seconds(call.single_s, PAPERS_DEGREE) for call in verdicts]
    assert np.mean(seconds) == pytest.approx(JUDGE.act_s, rel=0.2)


def test_longer_trajectories_come_later_and_take_their_teacher_longer() -> None:
    calls = generate_calls(np.random.default_rng(1), "MOPD", 100).calls
    assert np.corrcoef([call.single_s for call in calls], [call.due_s for call in calls])[0, 1] > 0.9
    assert len({call.due_s for call in calls}) == 100, "outputs that are cut off do not end at one moment"


def test_kernels_take_the_place_of_runs_that_end() -> None:
    before = generate(np.random.default_rng(3), architecture="colocated", iterations=3, size=64)
    after = kernel_trace(np.random.default_rng(3), np.random.default_rng(4), "colocated", KERNELS, 64, FEW)
    allowed = {min(one.seconds(FEW), STAGES[RUN].timeout_s) for one in KERNELS}
    assert len(after.tasks) == len(before.tasks)
    for old, new in zip(before.tasks[0].batches, after.tasks[0].batches, strict=True):
        assert np.array_equal(old.arrivals_s, new.arrivals_s)
        assert np.array_equal(old.executions_s[0], new.executions_s[0], equal_nan=True)
        assert np.array_equal(np.isnan(old.executions_s[RUN]), np.isnan(new.executions_s[RUN]))
        ran = ~np.isnan(new.executions_s[RUN])
        assert set(new.executions_s[RUN][ran].tolist()) <= allowed | {STAGES[RUN].timeout_s}
    assert all(
        np.array_equal(one.executions_s, other.executions_s, equal_nan=True)
        for one, other in zip(after.tasks[0].batches, after.tasks[1].batches, strict=True)
    ), "the tasks replay the same batches, as in §6.1"


def test_an_evaluation_runs_a_kernel_and_its_reference() -> None:
    assert MeasuredKernel(10.0, 20.0).seconds() == pytest.approx(RUNS.start_s + 3.0)


def test_without_kernels_there_is_no_trace() -> None:
    with pytest.raises(ValueError, match="no kernels"):
        kernel_trace(np.random.default_rng(1), np.random.default_rng(1), "colocated", (), 8)
