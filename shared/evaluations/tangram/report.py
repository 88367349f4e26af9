"""What comes out: each figure of the paper beside what was reproduced, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared.evaluations.distrs.report import Figure
from shared.evaluations.tangram.jobs import Outcomes, Workload
from shared.replay.tangram.assumptions import CLUSTER, OVERHEADS, PODS, told
from shared.replay.tangram.evaluation import (
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
    Place,
)
from shared.replay.tangram.measures import ENVIRONMENT, PARTS, REWARD, Run
from shared.replay.tangram.workload import ASSUMED

ALL_NODES = CLUSTER.nodes


@dataclass(frozen=True)
class Report:
    """One evaluation."""

    workload: Workload
    outcomes: Outcomes

    @property
    def figures(self) -> list[Figure]:
        """Beside the paper; of a trace of one's own there are none."""
        return [] if self.workload.given else list(self._figures())

    def _figures(self) -> Iterator[Figure]:
        for size in SIZES:
            yield self._ratio(f"8(a): ACT, pods / ours, batch {size:,}, 1,280 cores", PODS_NAME, Place(size, ALL_NODES))
        largest, smallest = (self._act_s(OURS, Place(size, ALL_NODES)) for size in (LARGEST, SIZES[0]))
        yield Figure(
            f"8(a): ACT, ours, batch {LARGEST:,} / {SIZES[0]}", "x", None, largest / smallest, f"{PAPER_GROWTH}×"
        )
        for nodes in NODES:
            cores = nodes * CLUSTER.cores
            yield self._ratio(f"8(a): ACT, pods / ours, {cores:,} cores, batch {SIZE:,}", PODS_NAME, Place(SIZE, nodes))
        for (system, place), paper in PAPER_ABLATION.items():
            where = f"batch {place.size:,}, {place.nodes * CLUSTER.cores:,} cores"
            ratio = self._act_s(system, place) / self._act_s(OURS, place)
            yield Figure(f"9: ACT, {system} / elastic, {where}", "x", paper, ratio)
        place = Place(SIZE, ALL_NODES)
        for name, phase, paper in zip(("environment", "reward"), (ENVIRONMENT, REWARD), PAPER_PHASES, strict=True):
            pods_s, ours_s = (self._run(system, place).phase_s(phase) for system in (PODS_NAME, OURS))
            yield Figure(f"7: {name} seconds, pods / ours, batch {SIZE:,}", "x", paper, pods_s / ours_s)
        unit_s = self._act_s(OURS, place)
        for size, papers in PAPER_PARTS.items():
            parts_s = self._run(OURS, Place(size, ALL_NODES)).parts_s
            for part, said, ours_s in zip(PARTS, papers, parts_s, strict=True):
                yield Figure(f"Table 1: {part}, batch {size:,}, of ACT at {SIZE:,}", "x", said, ours_s / unit_s)

    def _run(self, system: str, place: Place) -> Run:
        return self.outcomes.runs[place][system]

    def _act_s(self, system: str, place: Place) -> float:
        return self._run(system, place).act_s

    def _ratio(self, figure: str, system: str, place: Place) -> Figure:
        paper = PAPER_RATIO.get(place)
        ratio = self._act_s(system, place) / self._act_s(OURS, place)
        return Figure(figure, "x", paper, ratio, "" if paper else "drawn")

    def swept(self) -> Iterator[tuple[str, float, float, int]]:
        """Of the sweep: control plane, timeout, ACT of pods against ours at the largest batch, pods asked for again."""
        if not self.outcomes.sweep:
            return
        ours_s = self._act_s(OURS, Place(LARGEST, ALL_NODES))
        for plane, run in self.outcomes.sweep.items():
            yield f"{plane.creations_per_s:g} pods/s", plane.timeout_s, run.act_s / ours_s, run.retries

    def document(self) -> dict[str, Any]:
        """What `--json` prints; of a trace of one's own there is neither a figure nor a sweep."""
        return {
            "seed": self.workload.seed,
            "scale": self.workload.scale,
            "runs": [
                {"batch": place.size, "nodes": place.nodes, **run.document()}
                for place, runs in self.outcomes.runs.items()
                for run in runs.values()
            ],
            "figures": [
                {"figure": one.figure, "unit": one.unit, "paper": one.paper, "reproduced": one.reproduced}
                for one in self.figures
            ],
            "sweep": [
                {"control_plane": plane, "timeout_s": timeout_s, "ratio": ratio, "retries": retries}
                for plane, timeout_s, ratio, retries in self.swept()
            ],
            "assumed": {
                group: {name: value for name, value, _ in told(of)}
                for group, of in (
                    ("workload", ASSUMED), ("cluster", CLUSTER), ("overheads", OVERHEADS), ("pods", PODS)
                )
            },
        }  # fmt: skip
