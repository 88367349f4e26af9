"""Report: each figure of the paper compared with its reproduction, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from treadle.lab.evaluations.distrs.report import PaperFigure
from treadle.lab.evaluations.tangram.jobs import TangramResults, TangramWorkload
from treadle.lab.replay.tangram.assumptions import CLUSTER, OVERHEADS, PODS, assumptions_of
from treadle.lab.replay.tangram.evaluation import (
    LARGEST,
    NODES,
    OURS,
    PAPER_ABLATION,
    PAPER_GROWTH,
    PAPER_PARTS,
    PAPER_PHASES,
    PAPER_RATIO,
    PODS_NAME,
    SIZE,
    SIZES,
    OperatingPoint,
    pods_of,
)
from treadle.lab.replay.tangram.measures import ENVIRONMENT, PARTS, REWARD, SystemRun
from treadle.lab.replay.tangram.workload import ASSUMED

ALL_NODES = CLUSTER.nodes
COMPARED = (PODS_NAME, pods_of(1))
"""Systems that stand for the paper's baseline."""


class SweepResult(NamedTuple):
    """Result of pods under one control plane."""

    point: OperatingPoint
    width: int
    creations_per_s: float
    timeout_s: float
    ratio: float
    """ACT against ours."""
    retries: int
    """Pods requested again."""


@dataclass(frozen=True)
class TangramReport:
    """One evaluation."""

    workload: TangramWorkload
    results: TangramResults

    @property
    def figures(self) -> list[PaperFigure]:
        """Comparison with the paper; empty for a trace of one's own."""
        return [] if self.workload.given else list(self._figures())

    def _figures(self) -> Iterator[PaperFigure]:
        for size in SIZES:
            yield from self._ratios(f"batch {size:,}, 1,280 cores", OperatingPoint(size, ALL_NODES))
        largest, smallest = (self._act_s(OURS, OperatingPoint(size, ALL_NODES)) for size in (LARGEST, SIZES[0]))
        yield PaperFigure(
            f"8(a): ACT, ours, batch {LARGEST:,} / {SIZES[0]}", "x", None, largest / smallest, f"{PAPER_GROWTH}×"
        )
        for nodes in NODES:
            cores = nodes * CLUSTER.cores
            yield from self._ratios(f"{cores:,} cores, batch {SIZE:,}", OperatingPoint(SIZE, nodes))
        for (system, point), paper in PAPER_ABLATION.items():
            where = f"batch {point.size:,}, {point.nodes * CLUSTER.cores:,} cores"
            ratio = self._act_s(system, point) / self._act_s(OURS, point)
            yield PaperFigure(f"9: ACT, {system} / elastic, {where}", "x", paper, ratio)
        point = OperatingPoint(SIZE, ALL_NODES)
        for name, phase, paper in zip(("environment", "reward"), (ENVIRONMENT, REWARD), PAPER_PHASES, strict=True):
            ours_s = self._run(OURS, point).phase_s(phase)
            for system in COMPARED:
                ratio = self._run(system, point).phase_s(phase) / ours_s
                yield PaperFigure(f"7: {name} seconds, {system} / ours, batch {SIZE:,}", "x", paper, ratio)
        unit_s = self._act_s(OURS, point)
        for size, papers in PAPER_PARTS.items():
            parts_s = self._run(OURS, OperatingPoint(size, ALL_NODES)).parts_s
            for part, said, ours_s in zip(PARTS, papers, parts_s, strict=True):
                yield PaperFigure(f"Table 1: {part}, batch {size:,}, of ACT at {SIZE:,}", "x", said, ours_s / unit_s)

    def _run(self, system: str, point: OperatingPoint) -> SystemRun:
        return self.results.runs[point][system]

    def _act_s(self, system: str, point: OperatingPoint) -> float:
        return self._run(system, point).act_s

    def _ratios(self, where: str, point: OperatingPoint) -> Iterator[PaperFigure]:
        paper = PAPER_RATIO.get(point)
        for system in COMPARED:
            ratio = self.against_ours(system, point)
            yield PaperFigure(f"8(a): ACT, {system} / ours, {where}", "x", paper, ratio, "" if paper else "drawn")

    def against_ours(self, system: str, point: OperatingPoint) -> float:
        """Return the ACT of a system relative to ours."""
        return self._act_s(system, point) / self._act_s(OURS, point)

    def swept(self) -> Iterator[SweepResult]:
        """Yield the sweep, in the order of its jobs."""
        for (point, width, plane), run in self.results.sweep.items():
            ours_s = self._act_s(OURS, point)
            yield SweepResult(point, width, plane.creations_per_s, plane.timeout_s, run.act_s / ours_s, run.retries)

    def document(self) -> dict[str, Any]:
        """Return the document of `--json`; for a trace of one's own without figures and sweep."""
        return {
            "seed": self.workload.seed,
            "scale": self.workload.scale,
            "runs": [
                {"batch": point.size, "nodes": point.nodes, **run.document()}
                for point, runs in self.results.runs.items()
                for run in runs.values()
            ],
            "figures": [
                {"figure": one.figure, "unit": one.unit, "paper": one.paper, "reproduced": one.reproduced}
                for one in self.figures
            ],
            "sweep": [
                {
                    "batch": one.point.size, "nodes": one.point.nodes, "width": one.width,
                    "control_plane": f"{one.creations_per_s:g} pods/s", "timeout_s": one.timeout_s,
                    "ratio": one.ratio, "retries": one.retries,
                }
                for one in self.swept()
            ],
            "assumed": {
                group: {name: value for name, value, _ in assumptions_of(of)}
                for group, of in (
                    ("workload", ASSUMED), ("cluster", CLUSTER), ("overheads", OVERHEADS), ("pods", PODS)
                )
            },
        }  # fmt: skip
