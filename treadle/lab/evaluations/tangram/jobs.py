"""Jobs: each system at each point of the figures, and a sweep over the unpublished control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from treadle.lab.evaluations.pool import OnDone, run_jobs
from treadle.lab.replay.tangram.assumptions import CLUSTER, Cluster, PodRules
from treadle.lab.replay.tangram.evaluation import (
    CONTRASTS,
    CREATIONS_PER_S,
    LARGEST,
    OURS,
    PODS_NAME,
    RESERVING,
    SIZE,
    SWEPT,
    SWEPT_WIDTHS,
    SYSTEMS,
    TIMEOUTS_S,
    WIDTHS,
    OperatingPoint,
    pods_of,
    points,
    replay,
)
from treadle.lab.replay.tangram.measures import SystemRun
from treadle.lab.replay.tangram.recorded import Recording, resample
from treadle.lab.replay.tangram.trace import Batch
from treadle.lab.replay.tangram.workload import generate

AVERAGED: int = 768
"""Fewest trajectories in the average of a figure; smaller batches are repeated."""
QUICK: int = 8
"""Divisor of batches, cores and the control plane's rate with `--quick`."""
WEIGHTS: Mapping[str, float] = {OURS: 1.0, "Algorithm 1": 2.0, "DoP 4": 1.2, "DoP 16": 11.0, "fewest cores": 0.5}
"""Measured relative duration of each system if cores are scarce; reserving systems take a tenth."""


@dataclass(frozen=True)
class TangramWorkload:
    """Source of batches."""

    seed: int = 1
    scale: int = 1
    """Divisor of batches, cores of a node and the control plane's rate."""
    recordings: tuple[Recording, ...] = ()
    """Recordings to resample, with generated rewards; empty: all is generated."""
    given: Batch = ()
    """A trace of one's own, as one batch; empty: none."""

    def batches(self, size: int) -> list[Batch]:
        """Return batches of one size, cut from the largest one; several small ones, to reduce the variance."""
        if self.given:
            return [self.given]
        rng, most, count = np.random.default_rng(self.seed), LARGEST // self.scale, max(1, size // self.scale)
        all_of_them = resample(rng, most, self.recordings) if self.recordings else generate(rng, most)
        enough = max(count, AVERAGED // self.scale)
        return [all_of_them[first : first + count] for first in range(0, enough - count + 1, count)]

    def cluster(self, nodes: int) -> Cluster:
        """Return a cluster of this number of nodes, at this scale."""
        return replace(
            CLUSTER, nodes=nodes, cores=CLUSTER.cores // self.scale, memory_mb=CLUSTER.memory_mb // self.scale
        )

    def rules(self, rules: PodRules) -> PodRules:
        """Return a control plane's rules at this scale."""
        return replace(rules, creations_per_s=rules.creations_per_s / self.scale)


@dataclass(frozen=True)
class SystemJob:
    """One system at one point."""

    system: str
    point: OperatingPoint
    workload: TangramWorkload

    @property
    def name(self) -> str:
        return f"{self.system}, {self.point.size:,} on {self.point.nodes} nodes"

    @property
    def weight(self) -> float:
        """Weight by system and scarcity of cores."""
        short = self.point.size * CLUSTER.nodes / self.point.nodes >= SIZE
        return 0.1 if self.system in RESERVING else WEIGHTS[self.system] if short else 0.7

    def __call__(self) -> SystemRun:
        rules = self.workload.rules(RESERVING[self.system]) if self.system in RESERVING else None
        cluster = self.workload.cluster(self.point.nodes)
        batches = self.workload.batches(self.point.size)
        return SystemRun.together([replay(self.system, batch, cluster, rules=rules) for batch in batches])


@dataclass(frozen=True)
class ControlPlaneRates:
    """Unpublished parameters of the paper's baseline."""

    creations_per_s: float
    timeout_s: float


@dataclass(frozen=True)
class SweepJob:
    """Pods under another control plane."""

    plane: ControlPlaneRates
    point: OperatingPoint
    width: int
    workload: TangramWorkload
    weight: float = 0.1

    @property
    def name(self) -> str:
        return f"{pods_of(self.width)}, {self.plane.creations_per_s:g} a second, {self.plane.timeout_s:g} s"

    def __call__(self) -> SystemRun:
        rate, timeout_s = self.plane.creations_per_s, self.plane.timeout_s
        rules = replace(RESERVING[pods_of(self.width)], creations_per_s=rate, timeout_s=timeout_s)
        rules = self.workload.rules(rules)
        cluster = self.workload.cluster(self.point.nodes)
        batches = self.workload.batches(self.point.size)
        return SystemRun.together([replay(PODS_NAME, batch, cluster, rules=rules) for batch in batches])


@dataclass
class TangramResults:
    """Results of all jobs."""

    runs: dict[OperatingPoint, dict[str, SystemRun]] = field(default_factory=dict)
    """By point, then system."""
    sweep: dict[tuple[OperatingPoint, int, ControlPlaneRates], SystemRun] = field(default_factory=dict)
    """By point, width and control plane."""


Jobs = Sequence[SystemJob | SweepJob]


def evaluation(workload: TangramWorkload) -> Jobs:
    """Return the jobs of §6.3 and §6.4."""
    jobs = [
        SystemJob(system, point, workload)
        for point in points()
        for system in (*(pods_of(width) for width in WIDTHS), OURS, *CONTRASTS.get(point, ()))
    ]
    planes = [ControlPlaneRates(rate, timeout_s) for rate in CREATIONS_PER_S for timeout_s in TIMEOUTS_S]
    swept = [(plane, point, width) for point in SWEPT for width in SWEPT_WIDTHS for plane in planes]
    return [*jobs, *(SweepJob(*one, workload) for one in swept)]


def given(workload: TangramWorkload, nodes: int) -> Jobs:
    """Return the jobs of all systems over a trace of one's own."""
    point = OperatingPoint(len(workload.given), nodes)
    return [SystemJob(system, point, workload) for system in (*RESERVING, *SYSTEMS)]


def run_all(jobs: Jobs, processes: int, on_done: OnDone) -> TangramResults:
    """Run the jobs (`run_jobs`)."""
    results = TangramResults()
    runs: list[SystemRun] = run_jobs(jobs, processes, on_done)
    for job, run in zip(jobs, runs, strict=True):
        if isinstance(job, SweepJob):
            results.sweep[job.point, job.width, job.plane] = run
        else:
            results.runs.setdefault(job.point, {})[job.system] = run
    return results
