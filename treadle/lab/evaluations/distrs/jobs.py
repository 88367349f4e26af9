"""What is run: each policy over each workload, and what the order of service makes of two batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from treadle.lab.evaluations.pool import Tell, run_jobs
from treadle.lab.replay.distrs.ablations import ABLATIONS, CONDITIONS, variant
from treadle.lab.replay.distrs.ablations import ITERATIONS as SOME_ITERATIONS
from treadle.lab.replay.distrs.evaluation import OrderCurve, Run, order_matters, run
from treadle.lab.replay.distrs.generate import ITERATIONS, SIZE, TASKS, Architecture, generate
from treadle.lab.replay.distrs.policies import lineup
from treadle.lab.replay.distrs.trace import RewardTrace
from treadle.lab.replay.distrs.varied import varied

POLICIES = ("zq-dedicated", "history", "autoscaler", "distrs", "treadle", "ideal")
COMPARED = ("distrs", "treadle")
"""Over the workloads of many shapes."""
DRAWS = 5
"""Of the generated evaluation."""
WORKLOADS = 10
"""Of many shapes."""
ALONE = "one task"
"""The group of a single task's runs (Figure 13)."""
GIVEN = "trace"
"""The group of a given trace's runs."""
ARCHITECTURES: tuple[Architecture, ...] = ("colocated", "disaggregated")
WEIGHTS: Mapping[str, float] = {
    "zq-dedicated": 0.1, "history": 0.4, "autoscaler": 0.05, "distrs": 0.3, "treadle": 1.0, "ideal": 0.35
}  # fmt: skip
"""How long a policy takes over the same trace, as measured; the longest is 1."""


@dataclass(frozen=True)
class Workload:
    """The generated trace, or a part of it."""

    seed: int = 1
    tasks: int = TASKS
    iterations: int = ITERATIONS
    size: int = SIZE
    max_extra_delay_s: float | None = None
    """Instead of the generator's."""

    def trace(self, architecture: Architecture) -> RewardTrace:
        """Of one architecture."""
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
        """With the extra delay asked for."""
        if self.max_extra_delay_s is None:
            return trace
        return replace(trace, max_extra_delay_s=self.max_extra_delay_s)


@dataclass(frozen=True)
class PolicyJob:
    """One policy over a generated trace, or over a given one."""

    group: str
    """An architecture, `ALONE` or `GIVEN`."""
    policy: str
    workload: Workload
    given: RewardTrace | None = None

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.group}"

    @property
    def weight(self) -> float:
        """By policy, task and batch."""
        if self.given is None:
            return WEIGHTS[self.policy] * self.workload.tasks * self.workload.iterations
        return WEIGHTS[self.policy] * sum(len(task.batches) for task in self.given.tasks)

    def __call__(self) -> Run:
        trace = self.given or self.workload.trace("disaggregated" if self.group == "disaggregated" else "colocated")
        return run(trace, next(one for one in lineup(trace, self.workload.seed) if one.name == self.policy))


@dataclass(frozen=True)
class AblationJob:
    """A variant of our planner under a condition."""

    condition: str
    variant: str
    workload: Workload

    @property
    def name(self) -> str:
        return f"{self.variant}, {self.condition}"

    @property
    def weight(self) -> float:
        return WEIGHTS.get(self.variant, 1.0) * self.workload.tasks * self.workload.iterations

    def __call__(self) -> Run:
        asked = self.workload
        made = CONDITIONS[self.condition].trace(
            np.random.default_rng(asked.seed), asked.tasks, asked.iterations, asked.size
        )
        trace = asked.bounded(made)
        return run(trace, variant(self.variant, trace, asked.seed))


@dataclass(frozen=True)
class OrderJob:
    """EBF beside FCFS (Figure 14)."""

    workload: Workload
    name: str = "EBF and FCFS"
    weight: float = 5.0

    def __call__(self) -> OrderCurve:
        return order_matters(replace(self.workload, tasks=1).trace("colocated"))


@dataclass(frozen=True)
class VariedJob:
    """One policy over one of the workloads of many shapes."""

    number: int
    """Its seed."""
    policy: str
    weight: float = 8.0

    @property
    def name(self) -> str:
        return f"{self.policy}, workload {self.number}"

    def __call__(self) -> Run:
        trace = varied(np.random.default_rng(self.number))
        return run(trace, next(one for one in lineup(trace, self.number) if one.name == self.policy))


@dataclass
class Outcomes:
    """All that was replayed."""

    runs: dict[str, dict[str, Run]] = field(default_factory=dict)
    """By group (`PolicyJob.group`), then policy."""
    ablations: dict[tuple[str, str], Run] = field(default_factory=dict)
    """By condition and variant."""
    order: OrderCurve | None = None
    varied: dict[int, dict[str, Run]] = field(default_factory=dict)
    """By workload, then policy."""
    others: dict[int, Outcomes] = field(default_factory=dict)
    """By seed: the same for other draws of the evaluation, without ablations."""


Jobs = Sequence[PolicyJob | AblationJob | OrderJob | VariedJob]


def generated(workload: Workload, draws: int = 1, workloads: Sequence[int] = ()) -> Jobs:
    """The evaluation of §6, so many draws of it, and workloads of many shapes."""
    fewer = replace(workload, iterations=min(workload.iterations, SOME_ITERATIONS))
    seeds = range(workload.seed, workload.seed + draws)
    return [
        *(job for seed in seeds for job in _evaluation(replace(workload, seed=seed))),
        *(AblationJob(condition, name, fewer) for condition, name in ABLATIONS),
        *(VariedJob(number, policy) for number in workloads for policy in COMPARED),
    ]


def _evaluation(workload: Workload) -> Iterator[PolicyJob | OrderJob]:
    for group in ARCHITECTURES:
        yield from (PolicyJob(group, policy, workload) for policy in POLICIES)
    alone = replace(workload, tasks=1)
    yield from (PolicyJob(ALONE, policy, alone) for policy in POLICIES if policy != "autoscaler")
    yield OrderJob(workload)


def given(trace: RewardTrace, workload: Workload) -> Jobs:
    """All policies over a trace; of the workload only the seed is taken, and the extra delay."""
    bounded = workload.bounded(trace)
    return [PolicyJob(GIVEN, policy, workload, bounded) for policy in POLICIES]


def replay(jobs: Jobs, processes: int, tell: Tell) -> Outcomes:
    """Run them (`run_jobs`)."""
    outcomes = Outcomes()
    results: list[Run | OrderCurve] = run_jobs(jobs, processes, tell)
    first = next((job.workload.seed for job in jobs if isinstance(job, PolicyJob)), 0)
    for job, result in zip(jobs, results, strict=True):
        if isinstance(job, PolicyJob | OrderJob):
            seed = job.workload.seed
            into = outcomes if seed == first else outcomes.others.setdefault(seed, Outcomes())
        if isinstance(result, OrderCurve):
            into.order = result
        elif isinstance(job, AblationJob):
            outcomes.ablations[job.condition, job.variant] = result
        elif isinstance(job, VariedJob):
            outcomes.varied.setdefault(job.number, {})[job.policy] = result
        elif isinstance(job, PolicyJob):
            into.runs.setdefault(job.group, {})[job.policy] = result
    return outcomes
