"""Jobs: each system on each seed, by batch size and capacity, variants, swaps of one GPU, and DistRS with kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from treadle.lab.evaluations.pool import OnDone, run_jobs
from treadle.lab.replay.distrs.evaluation import PolicyRun
from treadle.lab.replay.distrs.evaluation import run as run_policy
from treadle.lab.replay.distrs.generate import SIZE, Architecture
from treadle.lab.replay.distrs.policies import lineup
from treadle.lab.replay.gpu.evaluation import (
    CAPACITY_SIZE,
    DEFAULT,
    FIXED,
    NODES,
    OURS,
    REPLICAS,
    SIZES,
    STARTS_S,
    STATIC,
    SWAPPING,
    SYSTEMS,
    VARIANTS,
    GpuSetting,
    replay,
)
from treadle.lab.replay.gpu.kernels import MeasuredKernel, kernel_trace
from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.swaps import SEEDS as TRACE_SEEDS
from treadle.lab.replay.gpu.swaps import TRACES, SwapCounts, SwapTraces, count_swaps
from treadle.lab.replay.gpu.workload import MIXES, Mix

SEEDS: Final = 3
"""Seeds of the evaluation, from 1 on."""
QUICK_SIZES: Final = (128, 1024)
"""Batch sizes with `--quick`."""
SLOTS: Final = (1, 2)
"""Services that the one GPU of the swap traces holds."""
POLICIES: Final = ("zq-dedicated", "distrs", "treadle", "ideal")
"""Scaling policies over the kernels."""
ARCHITECTURES: Final[tuple[Architecture, ...]] = ("colocated", "disaggregated")
WEIGHTS: Final[Mapping[str, float]] = {OURS: 20.0, FIXED: 5.0}
"""Relative duration of a system's replay; the others take 1 at most."""


@dataclass(frozen=True)
class GpuWorkload:
    """Extent of the evaluation."""

    seeds: int = SEEDS
    sizes: tuple[int, ...] = SIZES
    capacity_size: int = CAPACITY_SIZE
    variants: bool = True
    restore_s: float | None = None
    """Seconds of each restore, instead of those that follow from the weights."""
    traces: SwapTraces = TRACES
    kernels: tuple[MeasuredKernel, ...] = ()
    kernel_batch: int = SIZE
    """Requests of a batch of the kernels' workload."""


@dataclass(frozen=True)
class BatchJob:
    """One system under one setting with one seed."""

    system: str
    setting: GpuSetting
    seed: int

    @property
    def name(self) -> str:
        return f"{self.system}, {self.setting.mix}, batch {self.setting.size:,}, seed {self.seed}"

    @property
    def weight(self) -> float:
        calls = self.setting.size * (1 + (self.setting.mix == "MOPD+Search"))
        return WEIGHTS.get(self.system, 0.1) * calls / 2048

    def __call__(self) -> GpuRun:
        return replay(self.system, self.setting, self.setting.batch(np.random.default_rng(self.seed)))


@dataclass(frozen=True)
class SwapJob:
    """All policies on one trace of one GPU."""

    seed: int
    slots: int
    traces: SwapTraces
    weight: float = 1.0

    @property
    def name(self) -> str:
        return f"swaps, {self.slots} on the GPU, trace {self.seed}"

    def __call__(self) -> SwapCounts:
        return count_swaps(np.random.default_rng(self.seed), self.seed, self.slots, self.traces)


@dataclass(frozen=True)
class KernelJob:
    """One scaling policy over DistRS's workload with kernels."""

    policy: str
    architecture: Architecture
    seed: int
    kernels: tuple[MeasuredKernel, ...]
    size: int
    weight: float = 5.0

    @property
    def name(self) -> str:
        return f"kernels, {self.policy}, {self.architecture}, seed {self.seed}"

    def __call__(self) -> PolicyRun:
        rng, kernel_rng = np.random.default_rng(self.seed), np.random.default_rng((self.seed, 1))
        trace = kernel_trace(rng, kernel_rng, self.architecture, self.kernels, self.size)
        return run_policy(trace, next(one for one in lineup(trace, self.seed) if one.name == self.policy))


GpuJob = BatchJob | SwapJob | KernelJob


@dataclass
class GpuResults:
    """Results of all jobs."""

    runs: dict[str, dict[str, list[GpuRun]]] = field(default_factory=dict)
    """Setting -> system -> its runs, by seed."""
    swaps: list[SwapCounts] = field(default_factory=list)
    kernels: dict[str, dict[str, list[PolicyRun]]] = field(default_factory=dict)
    """Architecture -> policy -> its runs, by seed; empty without kernels."""


def of_size(mix: Mix, size: int) -> str:
    """Return the name of the setting with this batch."""
    return f"{mix}, batch {size:,}"


def of_nodes(nodes: int) -> str:
    """Return the name of the setting in which ours has so many nodes."""
    return f"{nodes * DEFAULT.cluster.gpus} GPUs"


def of_replicas(replicas: int) -> str:
    """Return the name of the setting in which the static baseline has so many replicas."""
    return "static, 1 replica" if replicas == 1 else f"static, {replicas} replicas"


def of_start(start_s: float) -> str:
    """Return the name of the setting in which the FIFO swapper's engines start in this time."""
    return f"engines start in {start_s:g} s"


def settings(workload: GpuWorkload) -> dict[str, tuple[GpuSetting, tuple[str, ...]]]:
    """Return the settings by name, each with the systems that run under it."""
    base = DEFAULT
    if workload.restore_s is not None:
        base = replace(base, engines=replace(base.engines, restore_s=workload.restore_s))
    named: dict[str, tuple[GpuSetting, tuple[str, ...]]] = {
        of_size(mix, size): (replace(base, mix=mix, size=size), SYSTEMS) for mix in MIXES for size in workload.sizes
    }
    wide = replace(base, mix="MOPD+Search", size=workload.capacity_size)
    for nodes in NODES:
        named[of_nodes(nodes)] = replace(wide, cluster=replace(wide.cluster, nodes=nodes)), (OURS, FIXED)
    for replicas in REPLICAS:
        named[of_replicas(replicas)] = replace(wide, partition=replace(wide.partition, replicas=replicas)), (STATIC,)
    if workload.variants:
        named |= {name: (setting, (STATIC, OURS, FIXED)) for name, setting in VARIANTS.items()}
        small = replace(base, size=workload.capacity_size)
        for start_s in STARTS_S:
            slow = replace(small, swapper=replace(small.swapper, start_s=start_s))
            named[of_start(start_s)] = slow, (SWAPPING,)
    return named


def evaluation(workload: GpuWorkload) -> Sequence[GpuJob]:
    """Return the different jobs of all settings, the traces of one GPU, and the kernels."""
    named = settings(workload)
    batches = dict.fromkeys(job for name in named for system in named[name][1] for job in _jobs(workload, name, system))
    return [*batches, *_swap_jobs(workload), *(job for jobs in _kernel_jobs(workload).values() for job in jobs)]


def _jobs(workload: GpuWorkload, name: str, system: str) -> list[BatchJob]:
    return [BatchJob(system, settings(workload)[name][0], seed) for seed in range(1, workload.seeds + 1)]


def _swap_jobs(workload: GpuWorkload) -> list[SwapJob]:
    return [SwapJob(seed, slots, workload.traces) for slots in SLOTS for seed in TRACE_SEEDS]


def _kernel_jobs(workload: GpuWorkload) -> dict[tuple[Architecture, str], list[KernelJob]]:
    seeds = range(1, workload.seeds + 1)
    return {
        (architecture, policy): [
            KernelJob(policy, architecture, seed, workload.kernels, workload.kernel_batch) for seed in seeds
        ]
        for architecture in ARCHITECTURES
        for policy in POLICIES
        if workload.kernels
    }


def run_all(workload: GpuWorkload, processes: int, on_done: OnDone) -> GpuResults:
    """Run the jobs (`run_jobs`)."""
    jobs = evaluation(workload)
    done: list[GpuRun | SwapCounts | PolicyRun] = run_jobs(jobs, processes, on_done)
    results = GpuResults(swaps=[one for one in done if isinstance(one, SwapCounts)])
    runs = {job: one for job, one in zip(jobs, done, strict=True) if isinstance(one, GpuRun)}
    policies = {job: one for job, one in zip(jobs, done, strict=True) if isinstance(one, PolicyRun)}
    for name, (_, systems) in settings(workload).items():
        results.runs[name] = {system: [runs[job] for job in _jobs(workload, name, system)] for system in systems}
    for (architecture, policy), mine in _kernel_jobs(workload).items():
        results.kernels.setdefault(architecture, {})[policy] = [policies[job] for job in mine]
    return results
