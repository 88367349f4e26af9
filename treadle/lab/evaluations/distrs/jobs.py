"""Jobs: each policy over each workload, orders of service, and the time of the search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

import numpy as np

from shared.policy.scaling.search import search
from treadle.lab.evaluations.pool import OnDone, run_jobs
from treadle.lab.replay.distrs.ablations import ABLATIONS, CONDITIONS, variant
from treadle.lab.replay.distrs.ablations import ITERATIONS as SOME_ITERATIONS
from treadle.lab.replay.distrs.evaluation import OrderCurve, PolicyRun, order_matters, run
from treadle.lab.replay.distrs.generate import ITERATIONS, SIZE, TASKS, Architecture, generate
from treadle.lab.replay.distrs.policies import lineup
from treadle.lab.replay.distrs.search_load import search_load
from treadle.lab.replay.distrs.trace import RewardTrace
from treadle.lab.replay.distrs.varied import varied

POLICIES = ("zq-dedicated", "history", "autoscaler", "distrs", "treadle", "ideal")
COMPARED = ("distrs", "treadle")
"""Policies on the varied workloads."""
DRAWS = 5
"""Draws of the generated evaluation."""
WORKLOADS = 10
"""Varied workloads."""
ALONE = "one task"
"""The group of a single task's runs (Figure 13)."""
GIVEN = "trace"
"""The group of a given trace's runs."""
ARCHITECTURES: tuple[Architecture, ...] = ("colocated", "disaggregated")
WEIGHTS: Mapping[str, float] = {
    "zq-dedicated": 0.1, "history": 0.4, "autoscaler": 0.05, "distrs": 0.3, "treadle": 1.0, "ideal": 0.35
}  # fmt: skip
"""Measured relative duration of each policy over the same trace; the longest is 1."""


@dataclass(frozen=True)
class DistrsWorkload:
    """The generated trace, or a part of it."""

    seed: int = 1
    tasks: int = TASKS
    iterations: int = ITERATIONS
    size: int = SIZE
    max_extra_delay_s: float | None = None
    """Instead of the generator's."""

    def trace(self, architecture: Architecture) -> RewardTrace:
        """Return the trace of one architecture."""
        return self.bounded(
            generate(
                np.random.default_rng(self.seed),
                architecture=architecture,
                tasks=self.tasks,
                iterations=self.iterations,
                size=self.size,
            )
        )

    def bounded(self, trace: RewardTrace) -> RewardTrace:
        """Return the trace with the configured extra delay."""
        if self.max_extra_delay_s is None:
            return trace
        return replace(trace, max_extra_delay_s=self.max_extra_delay_s)


@dataclass(frozen=True)
class PolicyJob:
    """One policy over a generated trace, or over a given one."""

    group: str
    """An architecture, `ALONE` or `GIVEN`."""
    policy: str
    workload: DistrsWorkload
    given: RewardTrace | None = None

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.group}"

    @property
    def weight(self) -> float:
        """Weight by policy, tasks and batches."""
        if self.given is None:
            return WEIGHTS[self.policy] * self.workload.tasks * self.workload.iterations
        return WEIGHTS[self.policy] * sum(len(task.batches) for task in self.given.tasks)

    def __call__(self) -> PolicyRun:
        trace = self.given or self.workload.trace("disaggregated" if self.group == "disaggregated" else "colocated")
        return run(trace, next(one for one in lineup(trace, self.workload.seed) if one.name == self.policy))


@dataclass(frozen=True)
class AblationJob:
    """A variant of our planner under a condition."""

    condition: str
    variant: str
    workload: DistrsWorkload

    @property
    def name(self) -> str:
        return f"{self.variant}, {self.condition}"

    @property
    def weight(self) -> float:
        return WEIGHTS.get(self.variant, 1.0) * self.workload.tasks * self.workload.iterations

    def __call__(self) -> PolicyRun:
        asked = self.workload
        made = CONDITIONS[self.condition].trace(
            np.random.default_rng(asked.seed), asked.tasks, asked.iterations, asked.size
        )
        trace = asked.bounded(made)
        return run(trace, variant(self.variant, trace, asked.seed))


@dataclass(frozen=True)
class OrderJob:
    """Comparison of EBF with FCFS (Figure 14)."""

    workload: DistrsWorkload
    name: str = "EBF and FCFS"
    weight: float = 5.0

    def __call__(self) -> OrderCurve:
        return order_matters(replace(self.workload, tasks=1).trace("colocated"))


@dataclass(frozen=True)
class VariedJob:
    """One policy over one varied workload."""

    number: int
    """Its seed."""
    policy: str
    weight: float = 8.0

    @property
    def name(self) -> str:
        return f"{self.policy}, workload {self.number}"

    def __call__(self) -> PolicyRun:
        trace = varied(np.random.default_rng(self.number))
        return run(trace, next(one for one in lineup(trace, self.number) if one.name == self.policy))


@dataclass
class DistrsResults:
    """Results of all jobs."""

    runs: dict[str, dict[str, PolicyRun]] = field(default_factory=dict)
    """By group (`PolicyJob.group`), then policy."""
    ablations: dict[tuple[str, str], PolicyRun] = field(default_factory=dict)
    """By condition and variant."""
    order: OrderCurve | None = None
    varied: dict[int, dict[str, PolicyRun]] = field(default_factory=dict)
    """By workload, then policy."""
    others: dict[int, DistrsResults] = field(default_factory=dict)
    """By seed: results of other draws of the evaluation, without ablations."""


Jobs = Sequence[PolicyJob | AblationJob | OrderJob | VariedJob]


def generated(workload: DistrsWorkload, draws: int = 1, workloads: Sequence[int] = ()) -> Jobs:
    """Return the jobs of the evaluation of §6 with `draws` draws, and of varied workloads."""
    fewer = replace(workload, iterations=min(workload.iterations, SOME_ITERATIONS))
    seeds = range(workload.seed, workload.seed + draws)
    return [
        *(job for seed in seeds for job in _evaluation(replace(workload, seed=seed))),
        *(AblationJob(condition, name, fewer) for condition, name in ABLATIONS),
        *(VariedJob(number, policy) for number in workloads for policy in COMPARED),
    ]


def _evaluation(workload: DistrsWorkload) -> Iterator[PolicyJob | OrderJob]:
    for group in ARCHITECTURES:
        yield from (PolicyJob(group, policy, workload) for policy in POLICIES)
    alone = replace(workload, tasks=1)
    yield from (PolicyJob(ALONE, policy, alone) for policy in POLICIES if policy != "autoscaler")
    yield OrderJob(workload)


def given(trace: RewardTrace, workload: DistrsWorkload) -> Jobs:
    """Return the jobs of all policies over a trace, with the seed and the extra delay of the workload."""
    bounded = workload.bounded(trace)
    return [PolicyJob(GIVEN, policy, workload, bounded) for policy in POLICIES]


def replay(jobs: Jobs, processes: int, on_done: OnDone) -> DistrsResults:
    """Run the jobs (`run_jobs`)."""
    results = DistrsResults()
    found: list[PolicyRun | OrderCurve] = run_jobs(jobs, processes, on_done)
    first = next((job.workload.seed for job in jobs if isinstance(job, PolicyJob)), 0)
    for job, result in zip(jobs, found, strict=True):
        if isinstance(job, PolicyJob | OrderJob):
            seed = job.workload.seed
            into = results if seed == first else results.others.setdefault(seed, DistrsResults())
        if isinstance(result, OrderCurve):
            into.order = result
        elif isinstance(job, AblationJob):
            results.ablations[job.condition, job.variant] = result
        elif isinstance(job, VariedJob):
            results.varied.setdefault(job.number, {})[job.policy] = result
        elif isinstance(job, PolicyJob):
            into.runs.setdefault(job.group, {})[job.policy] = result
    return results


REQUESTS = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000)
"""Numbers of requests. The paper's maximum is 16,000."""
ROUNDS = 3


def search_ms(requests: Sequence[int], seed: int, rounds: int = ROUNDS) -> dict[int, float]:
    """Return the milliseconds of one search by number of requests of six open batches: the median after a warm-up.

    Two stages, EBF. Do not use the machine during the measurement.
    """
    taken = {}
    for count in requests:
        batches, ceilings = search_load(count, chance=np.random.default_rng(seed))
        times = []
        for _ in range(1 + rounds):
            began = perf_counter()
            search(batches, ceilings)
            times.append(perf_counter() - began)
        taken[count] = 1e3 * median(times[1:])
    return taken
