"""Experiments of DistRS §6 in virtual time: units that each policy holds, and delays of trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shared.policy.scaling.list_scheduling import Counts, Floats
from shared.policy.scaling.simulation import schedule
from shared.policy.scaling.simulation_input import SimulationInput
from shared.policy.scaling.workload import Stage, repeating
from treadle.lab.replay.distrs.policy import Decision, Event, OpenBatchView, Policy
from treadle.lab.replay.distrs.simulated_cluster import RunCosts, SimulatedCluster, record_of
from treadle.lab.replay.distrs.trace import RewardTrace, TracedTask

APART_S = 100.0
"""§6.3: "the second batch starting 100 seconds after the first"."""
ORDER_STEPS = 40

PAPER: Mapping[str, Mapping[str, float]] = {
    "colocated": {"gpu_ratio": 3.79, "cpu_ratio": 1.98, "mean_delay_s": 0.62},
    "disaggregated": {"gpu_ratio": 3.49, "cpu_ratio": 2.16, "mean_delay_s": 0.85},
}
"""§6.2, Figures 10 and 11."""
PAPER_SINGLE_S = {"history": 14.3, "distrs": 2.1}
"""§6.3, Figure 13(b): mean extra delay."""
PAPER_NORMALISED = "very close to 1"
"""§6.2, Figure 12, of DistRS; the numbers are only drawn."""
PAPER_ORDER = 1.5
"""§6.3, Figure 14(a): times fewer GPU nodes with EBF than with FCFS, for the same low delay."""
PAPER_SEARCH_S = {16_000: 2.0}
"""§6.4, Figure 15."""


@dataclass(frozen=True)
class PolicyRun:
    """Measurements of a trace under one policy."""

    policy: str
    stages: tuple[str, ...]
    worker_s: Floats
    """By stage: worker-seconds held."""
    busy_s: Floats
    """By stage: worker-seconds executed."""
    delays_s: Floats
    """By batch, in the order of completion: d."""
    open_s: Floats
    """(n, 2) The same: opening and completion."""
    held: Sequence[tuple[float, tuple[int, ...]]]
    """(moment, workers by stage) after each decision."""

    @property
    def normalised(self) -> Floats:
        """By stage: held over executed worker-seconds (Figure 12); 1 wastes nothing. NaN if nothing was executed."""
        ratios = np.full(len(self.stages), np.nan)
        np.divide(self.worker_s, self.busy_s, out=ratios, where=self.busy_s > 0)
        return ratios

    @property
    def mean_delay_s(self) -> float:
        """0 without any batch."""
        return float(self.delays_s.mean()) if len(self.delays_s) else 0.0

    @property
    def worst_delay_s(self) -> float:
        """0 without any batch."""
        return float(self.delays_s.max(initial=0.0))

    def document(self) -> dict[str, Any]:
        """Return the document of `treadle replay distrs --json`; a stage without executions has no ratio."""
        delays = self.delays_s if len(self.delays_s) else np.zeros(1)
        ratios = (None if math.isnan(ratio) else ratio for ratio in self.normalised.tolist())
        return {
            "worker_seconds": dict(zip(self.stages, self.worker_s.tolist(), strict=True)),
            "extra_delay_s": {
                "mean": self.mean_delay_s,
                "p50": float(np.quantile(delays, 0.5)),
                "p99": float(np.quantile(delays, 0.99)),
                "max": float(delays.max()),
            },
            "normalised": dict(zip(self.stages, ratios, strict=True)),
        }


def run(trace: RewardTrace, policy: Policy) -> PolicyRun:
    """Run all batches but the first of each task, which is the history."""
    costs = SimulatedCluster(trace, policy).run()
    stages = len(trace.stages)
    return PolicyRun(
        policy.name,
        tuple(stage.name for stage in trace.stages),
        costs.unit_s.reshape(-1, stages).sum(axis=0),
        costs.busy_s,
        np.array([done.extra_delay_s for done in costs.done]),
        np.array([(done.opened_s, done.complete_s) for done in costs.done]).reshape(-1, 2),
        _by_stage(costs, stages),
    )


def _by_stage(costs: RunCosts, stages: int) -> list[tuple[float, tuple[int, ...]]]:
    return [(at, tuple(np.reshape(held, (-1, stages)).sum(axis=0).tolist())) for at, held in costs.held]


@dataclass(frozen=True)
class OrderCurve:
    """Delays by the number of workers, for two orders of service; parallel sequences."""

    workers: Sequence[int]
    """Workers of the most expensive stage, ascending."""
    ebf_s: Sequence[float]
    """Mean extra delay."""
    fcfs_s: Sequence[float]

    def times_fewer(self, at_most_s: float) -> float | None:
        """Return the ratio of workers, FCFS to EBF, for a mean delay that low."""
        ebf, fcfs = (fewest_with(self.workers, delays, at_most_s) for delays in (self.ebf_s, self.fcfs_s))
        return fcfs / ebf if ebf and fcfs else None


@dataclass
class FixedWorkers:
    """Policy with a constant number of workers of each stage."""

    workers: tuple[int, ...]
    by_arrival: bool
    name: str = "fixed"
    dedicated: bool = False
    knows_all: bool = False

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:  # noqa: ARG002
        return Decision(dict(enumerate(self.workers)))


def order_matters(trace: RewardTrace, steps: int = ORDER_STEPS) -> OrderCurve:
    """Return the mean extra delay of two batches, the second `APART_S` later, by workers of the most expensive stage
    (Figure 14).

    Args:
        trace: both batches are the last batch of its first task; the batch before it is their history.
        steps: numbers of workers to try, up to slightly more than a zero queue needs, most of them between a quarter
            and half of that. The other stages have enough workers for all requests.
    """
    batches = trace.tasks[0].batches
    batch, dear = batches[-1], dearest(trace.stages)
    twice = tuple(
        TracedTask(name, (batches[-2], replace(batch, start_s=start)))
        for name, start in (("first", 0.0), ("second", APART_S))
    )
    both = replace(trace, tasks=twice, cold_starts_s=())
    plenty = [batch.size * 2] * len(trace.stages)
    inputs = SimulationInput(
        [repeating(str(at), trace.stages, record_of(batch), 0.0, at) for at in (0.0, APART_S)], 0.0
    )
    widest = schedule(inputs.complete, plenty).used[inputs.pools.index(trace.stages[dear].drawn_from)]
    parts = np.concatenate([np.linspace(0.25, 0.55, steps - 4), np.linspace(0.65, 1.1, 4)])
    workers = np.unique(np.maximum(1, np.ceil(widest * parts)).astype(int)).tolist()

    def mean_s(count: int, *, by_arrival: bool) -> float:
        return run(both, FixedWorkers((*plenty[:dear], count, *plenty[dear + 1 :]), by_arrival)).mean_delay_s

    return OrderCurve(
        workers,
        [mean_s(count, by_arrival=False) for count in workers],
        [mean_s(count, by_arrival=True) for count in workers],
    )


def fewest_with(workers: Sequence[int], delays_s: Sequence[float], at_most_s: float) -> int | None:
    """Return the fewest workers from which on the delay stays that low; None if the most are too few."""
    fewest = None
    for delay, count in sorted(zip(delays_s, workers, strict=True), key=lambda pair: -pair[1]):
        if delay > at_most_s:
            break
        fewest = count
    return fewest


def single_task(trace: RewardTrace) -> RewardTrace:
    """Return the trace of the first task alone (Figure 13)."""
    return replace(trace, tasks=trace.tasks[:1])


def dearest(stages: Sequence[Stage]) -> int:
    """Return the number of the most expensive stage."""
    return max(range(len(stages)), key=lambda number: stages[number].worker_cost)
