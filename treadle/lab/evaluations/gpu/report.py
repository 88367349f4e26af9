"""Report: the paper's figures compared with their reproduction, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.lab.evaluations.distrs.report import PaperFigure
from treadle.lab.evaluations.gpu.jobs import ARCHITECTURES, GpuResults, GpuWorkload, of_nodes, of_replicas, of_size
from treadle.lab.replay.distrs.evaluation import PAPER
from treadle.lab.replay.gpu.assumptions import CLUSTER, ENGINES, JUDGE, PARTITION, ROLLOUT, SWAPPER, TEACHERS
from treadle.lab.replay.gpu.evaluation import (
    FIXED,
    NODES,
    OURS,
    PAPER_GPUS,
    PAPER_PARTS,
    PAPER_RATIOS,
    PAPER_SWAPPER,
    REPLICAS,
    STATIC,
    SWAPPING,
)
from treadle.lab.replay.gpu.kernels import RUN, RUNS
from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.swaps import SwapCounts
from treadle.lab.replay.gpu.workload import MIXES
from treadle.lab.replay.tangram.assumptions import assumptions_of

Measure = Callable[[GpuRun], float]
MEASURES: dict[str, Measure] = {
    "ACT, s": lambda run: run.act_s,
    "queueing": lambda run: run.mean_queue_s,
    "execution": lambda run: run.mean_execution_s,
    "overhead": lambda run: run.mean_overhead_s,
    "p99": lambda run: run.p99_s,
    "swaps": lambda run: run.swaps,
    "DoP": lambda run: run.degree,
}
"""Columns of the tables. `swaps`: per 1,000 calls."""


@dataclass(frozen=True)
class GpuReport:
    """One evaluation."""

    workload: GpuWorkload
    results: GpuResults

    @property
    def figures(self) -> list[PaperFigure]:
        """Comparison with the paper."""
        return [*self._ratios(), *self._capacity(), *self._parts(), *self._kernels()]

    @property
    def more_swaps(self) -> list[SwapCounts]:
        """Traces on which ours restores more often than LRU in order, or than Belady's optimum with reordering."""
        return [one for one in self.results.swaps if one.in_order > one.lru or one.reordered > one.belady]

    def values(self, setting: str, system: str, of: Measure) -> tuple[float, ...]:
        """Return a measure of a system under a setting, by seed."""
        return tuple(of(run) for run in self.results.runs[setting][system])

    def ratios(self, setting: str, system: str, ours: str = OURS) -> tuple[float, ...]:
        """Return the ACT of a system relative to ours, by seed."""
        runs = self.results.runs[setting]
        return tuple(theirs.act_s / mine.act_s for theirs, mine in zip(runs[system], runs[ours], strict=True))

    def gpus(self, replicas: int, ours: str) -> tuple[float | None, ...]:
        """Return the fewest GPUs of ours with an ACT not above the static baseline's / its GPUs, by seed.

        None: not even the largest cluster reaches it.
        """
        found: list[float | None] = []
        for seed, theirs in enumerate(self.results.runs[of_replicas(replicas)][STATIC]):
            mine = (self.results.runs[of_nodes(nodes)][ours][seed] for nodes in NODES)
            enough = next((run.gpus for run in mine if run.act_s <= theirs.act_s), None)
            found.append(None if enough is None else enough / theirs.gpus)
        return tuple(found)

    # ---- figures -----------------------------------------------------------------------------------------------

    def _ratios(self) -> Iterator[PaperFigure]:
        for ours in (OURS, FIXED):
            for mix in MIXES:
                for size in self.workload.sizes:
                    said = "slightly < 1" if size == min(self.workload.sizes) else "drawn"
                    name = f"8(b): ACT, {STATIC} / {ours}, {mix}, batch {size:,}"
                    yield _figure(
                        name, "x", PAPER_RATIOS.get(size), self.ratios(of_size(mix, size), STATIC, ours), said
                    )
        for mix in MIXES:
            for size in self.workload.sizes:
                said = "times out" if size == 2048 else "drawn"
                paper = PAPER_SWAPPER if size == 1024 else None
                name = f"8(b): ACT, {SWAPPING} / {OURS}, {mix}, batch {size:,}"
                yield _figure(name, "x", paper, self.ratios(of_size(mix, size), SWAPPING), said)

    def _capacity(self) -> Iterator[PaperFigure]:
        for ours in (OURS, FIXED):
            for replicas in REPLICAS:
                name = f"8(b): GPUs for the same ACT, {ours} / {of_replicas(replicas)}"
                shares = self.gpus(replicas, ours)
                known = tuple(one for one in shares if one is not None)
                yield _figure(name, "x", PAPER_GPUS, known if len(known) == len(shares) else ())

    def _parts(self) -> Iterator[PaperFigure]:
        for size, (execution_s, queue_s, overhead_s) in PAPER_PARTS.items():
            if size not in self.workload.sizes:
                continue
            for ours in (OURS, FIXED):
                setting, name = of_size("MOPD", size), f"{ours}, MOPD, batch {size:,}"
                for part, paper in (("execution", execution_s), ("queueing", queue_s), ("overhead", overhead_s)):
                    values = self.values(setting, ours, MEASURES[part])
                    yield _figure(f"Table 1: {part}, {name}", "s", paper, values)
                shares = self.values(setting, ours, lambda run: run.overhead_share)
                yield _figure(f"Table 1: overhead / execution, {name}", "x", overhead_s / execution_s, shares)

    def _kernels(self) -> Iterator[PaperFigure]:
        if not self.results.kernels:
            return
        for architecture in ARCHITECTURES:
            runs, paper = self.results.kernels[architecture], PAPER[architecture]
            for policy in ("distrs", "treadle"):
                pairs = zip(runs["zq-dedicated"], runs[policy], strict=True)
                ratios = tuple(float(theirs.worker_s[RUN] / ours.worker_s[RUN]) for theirs, ours in pairs)
                published = policy == "distrs"
                name = f"DistRS 10, 11: GPU time, ZQ-Dedicated / {policy}, kernels, {architecture}"
                yield _figure(name, "x", paper["gpu_ratio"] if published else None, ratios, "none")
                name = f"DistRS 10, 11: mean extra delay, {policy}, kernels, {architecture}"
                delays = tuple(run.mean_delay_s for run in runs[policy])
                yield _figure(name, "s", paper["mean_delay_s"] if published else None, delays, "none")

    # ---- document ----------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Return the document of `--json`."""
        return {
            "seeds": self.workload.seeds,
            "restore_s": self.workload.restore_s,
            "runs": [
                {"setting": setting, "seed": seed, **run.document()}
                for setting, systems in self.results.runs.items()
                for runs in systems.values()
                for seed, run in enumerate(runs, 1)
            ],
            "swaps": [one.document() for one in self.results.swaps],
            "kernels": [
                {"architecture": architecture, "policy": policy, "seed": seed, **run.document()}
                for architecture, policies in self.results.kernels.items()
                for policy, runs in policies.items()
                for seed, run in enumerate(runs, 1)
            ],
            "figures": [
                {
                    "figure": one.figure, "unit": one.unit, "paper": one.paper, "reproduced": one.reproduced,
                    "draws": list(one.draws),
                }
                for one in self.figures
            ],
            "assumed": {
                group: {name: value for name, value, _ in assumptions_of(of)}
                for group, of in assumed(self.workload).items()
            },
        }  # fmt: skip


def assumed(workload: GpuWorkload) -> dict[str, Any]:
    """Return the groups of assumptions by name."""
    return {
        "cluster": CLUSTER, "teachers": TEACHERS, "judge": JUDGE, "rollout": ROLLOUT, "engines": ENGINES,
        "static": PARTITION, "swapper": SWAPPER, "swap traces": workload.traces, "kernels": RUNS,
    }  # fmt: skip


def _figure(name: str, unit: str, paper: float | None, draws: tuple[float, ...], said: str = "") -> PaperFigure:
    mean = float(np.mean(draws)) if draws else None
    return PaperFigure(name, unit, paper, mean, "" if paper is not None else said, draws if len(draws) > 1 else ())
