"""The planner measured at work: a small workload on a whole stack, and its decisions made again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shared.policy.scaling.config import PlannerConfig
from shared.store.stimulus_log import VERSION, LogHeader
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchFigure
from treadle.lab.bench.mesh import BenchMesh
from treadle.lab.bench.scaling import LiveRun, UnitSeconds, scaling, scaling_figures, workload
from treadle.lab.bench.sizes import QUICK, ScalingSizes, Sizes
from treadle.lab.bench.trainers import requests
from treadle.lab.evaluations.planner_decisions import Comparison, Difference
from treadle.lab.replay.distrs.evaluation import PolicyRun, run
from treadle.lab.replay.distrs.generate import generate
from treadle.lab.replay.distrs.planner_policy import PlannerPolicy
from treadle.lab.replay.distrs.trace import quicker

SMALL = ScalingSizes(tasks=1, batches=3, requests=12, times=400.0)


@pytest.mark.slow
async def test_a_live_planner_decides_what_its_log_decides_again() -> None:
    """All batches are complete, else it raises."""
    messages: list[str] = []
    made = by_name(await scaling(Bench(BenchMesh(""), Sizes(scaling=SMALL), messages.append)))
    assert made["scaling.same"].met, made["scaling.same"].what
    assert made["scaling.decisions"].value > 4, "targets up and down, and T, of each batch"
    assert "all the same" in messages[-1]
    assert "2 batches" in made["scaling.delay"].what, "the first has no history"
    assert made["scaling.normalised"].value >= 1.0, "units in use are held"
    assert made["scaling.virtual.normalised"].value >= 1.0


def test_a_decision_that_differs_fails_its_figure_and_is_named() -> None:
    comparison = Comparison(LogHeader(VERSION, PlannerConfig(), {}, {}, 1), 0, stimuli=4, decisions=2, different=1)
    comparison.differences.append(Difference(3, 1.5, "Woken", [], [["ExpectCompletion", {"batch": "b", "at": 2.0}]]))
    made = by_name(scaling_figures(LiveRun(UnitSeconds(3.0, 2.0), [0.1], comparison), virtual()))
    assert made["scaling.same"].value == 75.0
    assert made["scaling.same"].met is False
    assert "stimulus 3 (Woken, after 1.50 s): then nothing; now T of batch b" in made["scaling.same"].what


def test_the_workload_is_the_middle_of_the_training_with_all_seconds_divided() -> None:
    chance = np.random.default_rng(1)
    whole = generate(chance, architecture="colocated", tasks=2, iterations=9, size=16)
    quick = quicker(whole, 10.0, 3)
    assert quick.max_extra_delay_s == whole.max_extra_delay_s / 10
    assert [stage.timeout_s for stage in quick.stages] == [stage.timeout_s / 10 for stage in whole.stages]
    for long, short in zip(whole.tasks, quick.tasks, strict=True):
        assert len(short.batches) == 3
        assert short.batches[0].gap_s == long.batches[0].gap_s / 10, "tasks begin as far apart"
        assert short.batches[1].gap_s == long.batches[4].gap_s / 10
        for old, new in zip(long.batches[3:6], short.batches, strict=True):
            assert new.ideal_span_s == pytest.approx(old.ideal_span_s / 10)


@pytest.mark.parametrize("sizes", [SMALL, QUICK.scaling, ScalingSizes()])
def test_each_request_sleeps_through_every_stage(sizes: ScalingSizes) -> None:
    trace = workload(sizes)
    assert {len(task.batches) for task in trace.tasks} == {sizes.batches}
    for batch in trace.tasks[0].batches:
        assert len(requests(batch, trace.stages)) == sizes.requests
        assert np.isfinite(batch.executions_s).all()


def virtual() -> PolicyRun:
    trace = workload(replace(SMALL, batches=2))
    return run(trace, PlannerPolicy("treadle", trace, PlannerConfig(), 1))


def by_name(figures: list[BenchFigure]) -> dict[str, BenchFigure]:
    return {one.name: one for one in figures}
