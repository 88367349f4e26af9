"""The policies of the evaluation on small generated traces, and the statements of the paper about them (DistRS §6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from shared.policy.scaling.collection import CollectionInput
from shared.policy.scaling.config import PAPER
from shared.policy.scaling.list_scheduling import Counts
from shared.policy.scaling.workload import UNREACHED, BatchRecord
from treadle.lab.replay.distrs.evaluation import APART_S, FixedWorkers, PolicyRun, run
from treadle.lab.replay.distrs.generate import STAGES, WINDOW_S, Architecture, generate
from treadle.lab.replay.distrs.planner_policy import PlannerPolicy
from treadle.lab.replay.distrs.policies import OURS, Autoscaler, Ideal, ZeroQueue, lineup
from treadle.lab.replay.distrs.policy import Decision, Event, OpenBatchView, RolloutReport
from treadle.lab.replay.distrs.simulated_cluster import SimulatedCluster
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch, TracedTask

PLENTY = 256


def small(seed: int, architecture: Architecture = "colocated", tasks: int = 3) -> RewardTrace:
    return generate(np.random.default_rng(seed), architecture=architecture, tasks=tasks, iterations=4, size=64)


def cost(run: PolicyRun) -> float:
    return float(run.worker_s @ [stage.worker_cost for stage in STAGES])


@pytest.mark.parametrize("architecture", ["colocated", "disaggregated"])
def test_a_run_is_always_the_same(architecture: Architecture) -> None:
    trace = small(1, architecture)
    once, again = ([run(trace, policy) for policy in lineup(trace, seed=7)] for _ in range(2))
    assert [one.document() for one in once] == [one.document() for one in again]
    assert [one.held for one in once] == [one.held for one in again]


@pytest.mark.parametrize("architecture", ["colocated", "disaggregated"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_clairvoyant_policy_pays_less_than_zero_queue_and_is_within_d(
    seed: int, architecture: Architecture
) -> None:
    trace = small(seed, architecture)
    ideal = run(trace, Ideal(trace.stages, 3.0))
    zero_queue = run(trace, ZeroQueue(trace.stages))
    assert (ideal.normalised >= 1.0 - 1e-9).all()
    assert (ideal.normalised <= zero_queue.normalised).all()
    assert cost(ideal) <= cost(zero_queue)
    assert len(ideal.delays_s) == len(zero_queue.delays_s) == 3 * 3


def test_alone_the_clairvoyant_policy_is_never_later_than_d() -> None:
    """No other batch opens in between, so the plan of the first arrival holds to the end."""
    for seed in range(5):
        trace = small(seed, tasks=1)
        ideal = run(trace, Ideal(trace.stages, 3.0))
        assert (ideal.delays_s <= 3.0 + 1e-6).all()


def first_delay(trace: RewardTrace, gpus: int, *, by_arrival: bool) -> float:
    """Extra delay of the earlier batch of two (§6.3, Figure 14)."""
    batches = trace.tasks[0].batches
    starts = {"first": 0.0, "second": APART_S}
    twice = tuple(TracedTask(name, (batches[-2], replace(batches[-1], start_s=at))) for name, at in starts.items())
    done = SimulatedCluster(replace(trace, tasks=twice), FixedWorkers((PLENTY, gpus), by_arrival)).run().done
    return next(one.extra_delay_s for one in done if one.task == 0)


def test_in_ebf_order_the_earlier_of_two_batches_is_never_later_than_in_fcfs() -> None:
    delays = np.array(
        [
            [first_delay(small(seed, tasks=1), gpus, by_arrival=by_arrival) for by_arrival in (False, True)]
            for seed in range(8)
            for gpus in (1, 2, 3, 5)
        ]
    )
    assert (delays[:, 0] <= delays[:, 1] + 1e-9).all()
    assert (delays[:, 0] < delays[:, 1] - 1.0).any()


@dataclass
class RecordingPlannerPolicy(PlannerPolicy):
    """Records reports of rollouts, and the times at which it changed its targets."""

    changed: list[tuple[float, Event]] = field(default_factory=list)
    reports: list[RolloutReport] = field(default_factory=list)

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:
        self.reports += [view.report for view in open_batches if view.report is not None]
        decision = super().decide(now, event, open_batches, busy)
        if decision.targets:
            self.changed.append((now, event))
        return decision


def test_tasks_begin_with_the_offsets_of_the_trace() -> None:
    """§6.1: "with their start times staggered within a short time window"."""
    trace = generate(np.random.default_rng(1), architecture="disaggregated", tasks=6, iterations=2, size=16)
    done = SimulatedCluster(trace, FixedWorkers((PLENTY, PLENTY), by_arrival=False)).run().done
    opened = [one.opened_s for one in sorted(done, key=lambda one: one.task)]
    gaps = [sum(batch.gap_s for batch in task.batches) for task in trace.tasks]
    assert opened == pytest.approx(gaps)
    assert max(opened) - min(opened) > WINDOW_S / 4


@pytest.mark.parametrize("known", [(0, 0, 0, 0), (0, 64, 64, 64), (40, 64, 64, 64), (40, 40, 40, 40)])
def test_unknown_lengths_are_ignored(known: tuple[int, ...]) -> None:
    """Progress comes from known lengths; without any, the pace is unknown."""
    trace = small(3, tasks=1)
    batches = tuple(
        replace(batch, lengths=np.where(np.arange(batch.size) < some, batch.lengths, np.nan))
        for batch, some in zip(trace.tasks[0].batches, known, strict=True)
        if batch.lengths is not None
    )
    policy = RecordingPlannerPolicy("p", trace, OURS, 1)
    ran = run(replace(trace, tasks=(TracedTask("t", batches),)), policy)
    assert len(ran.delays_s) == len(batches) - 1
    reported = [report.tokens for report in policy.reports]
    assert any(tokens is not None for tokens in reported[:10]) == (known[1] > 0)
    assert all(tokens is None or 0 <= tokens < 1e6 for tokens in reported)


def asked(policy: Autoscaler, *busy: int) -> list[int]:
    """Targets after each decision, 15 s apart."""
    looks = [policy.decide(15.0 * number, "timer", [], np.array([used])) for number, used in enumerate(busy)]
    return [look.targets[0] for look in looks]


def test_the_autoscaler_grows_by_a_quarter_waits_five_minutes_to_shrink_and_keeps_one() -> None:
    """Workers are never more than busy, so more than 1 / 0.8 is never asked for at once."""
    policy = Autoscaler(STAGES[:1])
    assert asked(policy, 0, 9, 9, 9, 9, 9) == [1, 2, 3, 4, 5, 7]
    policy = Autoscaler(STAGES[:1])
    held = asked(policy, 1, 2, 4, 8, *[0] * 40)
    assert held[:4] == [2, 3, 4, 5]
    assert set(held[4:23]) == {5}
    assert held[-1] == 1


def test_zero_queue_holds_for_each_task_what_its_last_batch_had_at_once() -> None:
    """Three compile at once, two run at once; the other task is not open, so it holds nothing."""
    past = BatchRecord((0.0, 1.0, 2.0), ((5.0, 5.0, 5.0), (2.0, 2.0, 0.5)))
    view = OpenBatchView(1, 4, CollectionInput(3, 0.0, 1.0, 1), None, [past], [1.0], None)
    decision = ZeroQueue(STAGES).decide(1.0, "arrived", [view], np.zeros(4, int))
    assert decision.targets == {0: 0, 1: 0, 2: 3, 3: 2}
    hinted = replace(view, seen=CollectionInput(3, 0.0))
    assert ZeroQueue(STAGES).decide(0.5, "opened", [hinted], np.zeros(4, int)).targets == dict.fromkeys(range(4), 0)


def test_zero_queue_adds_up_what_batches_of_a_task_need_that_are_open_together() -> None:
    """Both may be at their widest at once, so the larger alone would let requests wait."""
    past = BatchRecord((0.0, 1.0, 2.0), ((5.0, 5.0, 5.0), (2.0, 2.0, 0.5)))
    views = [OpenBatchView(0, number, CollectionInput(3, 0.0, 1.0, 1), None, [past], [1.0], None) for number in (4, 5)]
    assert ZeroQueue(STAGES).decide(1.0, "arrived", views, np.zeros(2, int)).targets == {0: 6, 1: 4}


def test_zero_queue_keeps_a_worker_of_a_stage_that_the_last_batch_did_not_reach() -> None:
    past = BatchRecord((0.0,), ((5.0,), (UNREACHED,)))
    view = OpenBatchView(0, 4, CollectionInput(1, 0.0, 1.0, 1), None, [past], [1.0], None)
    assert ZeroQueue(STAGES).decide(1.0, "arrived", [view], np.zeros(2, int)).targets == {0: 1, 1: 1}


def test_zero_queue_lets_nothing_wait_where_batches_of_a_task_overlap() -> None:
    """All batches are alike, so each batch needs as much as the last one."""
    batch = small(1, tasks=1).tasks[0].batches[1]
    overlapping = tuple(replace(batch, start_s=50.0 * number) for number in range(4))
    trace = replace(small(1, tasks=1), tasks=(TracedTask("t", overlapping),))
    assert run(trace, ZeroQueue(trace.stages)).delays_s == pytest.approx(0.0)


def changes(trace: RewardTrace, *, hints: bool, cold_start_s: float) -> tuple[list[tuple[float, Event]], list[float]]:
    """Times at which it changed its targets, and at which the batches opened."""
    cold = replace(trace, cold_starts_s=(cold_start_s,) * len(trace.stages))
    policy = RecordingPlannerPolicy("w", cold, replace(PAPER, hints=hints), 1)
    costs = SimulatedCluster(cold, policy).run()
    return policy.changed, [one.opened_s for one in costs.done]


def test_the_hint_wakes_the_planner_a_cold_start_before_the_first_request_is_expected() -> None:
    trace = small(2, tasks=1)
    changed, opened = changes(trace, hints=True, cold_start_s=10.0)
    gaps = [float(batch.arrivals_s[0]) for batch in trace.tasks[0].batches]
    expected = [at + gap - 10.0 for at, gap in zip(opened, gaps, strict=False)]
    woken = [at for at, event in changed if event == "timer"]
    assert set(np.round(expected, 6)) <= set(np.round(woken, 6))


def test_a_batch_whose_first_request_is_expected_sooner_is_planned_for_as_it_opens() -> None:
    changed, opened = changes(small(2), hints=True, cold_start_s=1000.0)
    assert {at for at, event in changed if event == "opened"} <= set(opened)
    assert changed[0] == (opened[0], "opened")


def test_the_paper_decides_when_the_first_request_comes_and_when_a_batch_is_complete() -> None:
    changed, _ = changes(small(2), hints=False, cold_start_s=0.0)
    assert {event for _, event in changed} == {"arrived", "complete"}


def test_workers_warmed_up_by_the_hint_delay_no_request() -> None:
    """One request a batch, always after 20 s: without the hint it waits for the whole cold start."""
    alike = TracedBatch(np.array([20.0]), np.array([[5.0], [5.0]]), gap_s=30.0)
    trace = RewardTrace(STAGES, 0.0, (TracedTask("t", (alike,) * 4),), (8.0, 8.0))
    hinted, unhinted = (
        run(trace, PlannerPolicy("s", trace, replace(PAPER, hints=hints), 1)) for hints in (True, False)
    )
    assert hinted.delays_s.tolist() == [0.0] * 3
    assert unhinted.delays_s.tolist() == [8.0] * 3


def test_batches_of_another_size_begin_a_new_history() -> None:
    """Some of 64, then some of 32: the first ones are no history of the others, so the first of these gets all."""
    trace = small(1, tasks=1)
    batches = trace.tasks[0].batches
    halves = [replace(one, arrivals_s=one.arrivals_s[:32], executions_s=one.executions_s[:, :32], lengths=None)
              for one in batches]  # fmt: skip
    both = replace(trace, tasks=(TracedTask("t", (*batches, *halves)),))
    ran = run(both, PlannerPolicy("s", both, OURS, 1))
    assert len(ran.delays_s) == len(batches) + len(halves) - 1
    assert max(held for _, workers in ran.held for held in workers) <= 64


def test_ours_costs_less_than_the_papers_and_is_no_later() -> None:
    means = []
    for seed in (1, 2, 3, 4):
        trace = generate(np.random.default_rng(seed), architecture="colocated", tasks=3, iterations=5, size=256)
        ours, paper = (run(trace, PlannerPolicy("p", trace, config, seed)) for config in (OURS, PAPER))
        assert cost(ours) < 0.9 * cost(paper)
        assert ours.delays_s.mean() <= paper.delays_s.mean() + 0.5
        means.append((ours.delays_s.mean(), paper.delays_s.mean()))
    ours_s, paper_s = np.mean(means, axis=0)
    assert ours_s <= paper_s / 5
