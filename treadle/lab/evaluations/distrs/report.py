"""Report: each figure of the paper compared with its reproduction, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shared.policy.scaling.workload import Stage
from treadle.lab.evaluations.distrs.jobs import ALONE, ARCHITECTURES, GIVEN, DistrsResults
from treadle.lab.replay.distrs.evaluation import (
    PAPER,
    PAPER_NORMALISED,
    PAPER_ORDER,
    PAPER_SEARCH_S,
    PAPER_SINGLE_S,
    PolicyRun,
    dearest,
)
from treadle.lab.replay.distrs.trace import RewardTrace
from treadle.lab.replay.distrs.varied import varied


@dataclass(frozen=True)
class PaperFigure:
    """A number of the paper, and ours."""

    figure: str
    unit: str
    """`x` (a ratio) or `s`."""
    paper: float | None
    """None: the paper only draws it, or describes it in words."""
    reproduced: float | None
    """None: this run has no such number (too few workers, or no executions)."""
    said: str = ""
    """Words of the paper, if it has no number."""
    draws: tuple[float, ...] = ()
    """Values of all draws, including this one; empty with one draw, or if the number does not depend on draws."""


@dataclass(frozen=True)
class PlannerComparison:
    """Both planners on one workload."""

    number: int
    trace: RewardTrace
    distrs: PolicyRun
    treadle: PolicyRun

    def cost(self, run: PolicyRun) -> float:
        """Return the cost of held over executed worker-seconds."""
        costs = np.array([stage.worker_cost for stage in self.trace.stages])
        return float(run.worker_s @ costs / (run.busy_s @ costs))

    @property
    def worse(self) -> list[str]:
        """Measures by which ours is later or more expensive."""
        ours, theirs = self.treadle, self.distrs
        found = {
            "later in the mean": ours.mean_delay_s > theirs.mean_delay_s,
            "later at worst": ours.worst_delay_s > theirs.worst_delay_s,
            "dearer": self.cost(ours) > self.cost(theirs),
        }
        return [name for name, so in found.items() if so]

    def document(self) -> dict[str, Any]:
        return {
            "workload": self.number,
            "tasks": len(self.trace.tasks),
            "stages": len(self.trace.stages),
            "batches": len(self.treadle.delays_s),
            "max_extra_delay_s": self.trace.max_extra_delay_s,
            "worse": self.worse,
            **{
                policy: {"mean_s": run.mean_delay_s, "worst_s": run.worst_delay_s, "cost": self.cost(run)}
                for policy, run in (("distrs", self.distrs), ("treadle", self.treadle))
            },
        }


@dataclass(frozen=True)
class DistrsReport:
    """One evaluation."""

    stages: Sequence[Stage]
    tasks: int
    """Tasks that train at once."""
    max_extra_delay_s: float
    results: DistrsResults
    search_ms: Mapping[int, float]
    """By number of requests."""

    @property
    def figures(self) -> list[PaperFigure]:
        """Comparison with the paper; empty for a given trace."""
        if GIVEN in self.results.runs:
            return []
        others = [replace(self, results=other, search_ms={}) for other in self.results.others.values()]
        rows = zip(self._figures(), *(other._figures() for other in others), strict=True)
        return [_spread(first, same) for first, *same in rows]

    @property
    def compared(self) -> list[PlannerComparison]:
        """Comparison of ours with DistRS on each varied workload."""
        return [
            PlannerComparison(number, varied(np.random.default_rng(number)), runs["distrs"], runs["treadle"])
            for number, runs in self.results.varied.items()
        ]

    def draws(self, group: str, policy: str) -> list[PolicyRun]:
        """Return the runs of one policy in all draws."""
        return [one.runs[group][policy] for one in (self.results, *self.results.others.values())]

    def _figures(self) -> Iterator[PaperFigure]:
        gpu = dearest(self.stages)
        cpu = 1 - gpu
        for number, architecture in zip((10, 11), ARCHITECTURES, strict=True):
            runs, paper = self.results.runs[architecture], PAPER[architecture]
            zero_queue, distrs = runs["zq-dedicated"], runs["distrs"]
            for what, stage in (("GPU", gpu), ("CPU", cpu)):
                yield PaperFigure(
                    f"{number}: {what} time, ZQ-Dedicated / DistRS, {architecture}",
                    "x",
                    paper[f"{what.lower()}_ratio"],
                    _ratio(float(zero_queue.worker_s[stage]), float(distrs.worker_s[stage])),
                )
            delay = distrs.mean_delay_s
            yield PaperFigure(f"{number}: mean extra delay, DistRS, {architecture}", "s", paper["mean_delay_s"], delay)
        for architecture in ARCHITECTURES:
            for name, policy in (("DistRS", "distrs"), ("ideal", "ideal")):
                run = self.results.runs[architecture][policy]
                held = _ratio(float(run.worker_s[gpu]), float(run.busy_s[gpu]))
                yield PaperFigure(f"12: normalised GPU time, {name}, {architecture}", "x", None, held, PAPER_NORMALISED)
        for what, policy in (("history-based", "history"), ("timeout-aware (DistRS)", "distrs")):
            delay = self.results.runs[ALONE][policy].mean_delay_s
            yield PaperFigure(f"13: mean extra delay, {what}, one task", "s", PAPER_SINGLE_S[policy], delay)
        order = self.results.order
        fewer = order.times_fewer(self.max_extra_delay_s) if order else None
        yield PaperFigure(
            f"14: GPUs for a mean delay <= {self.max_extra_delay_s:g} s, FCFS / EBF", "x", PAPER_ORDER, fewer
        )
        for requests, seconds in PAPER_SEARCH_S.items():
            taken = self.search_ms.get(requests)
            ours = None if taken is None else taken / 1e3
            yield PaperFigure(f"15: search time, {requests:,} requests", "s", seconds, ours)

    def document(self) -> dict[str, Any]:
        """Return the document of `--json`.

        `policies` are those of the colocated or the given trace. For a given trace there is only `search_ms` beside it.
        """
        runs, search = self.results.runs, {str(count): taken for count, taken in self.search_ms.items()}
        if GIVEN in runs:
            return {"policies": _policies(runs[GIVEN]), "search_ms": search}
        order = self.results.order
        return {
            "policies": _policies(runs["colocated"]),
            "search_ms": search,
            "disaggregated": {"policies": _policies(runs["disaggregated"])},
            "figures": [
                {
                    "figure": one.figure,
                    "unit": one.unit,
                    "paper": one.paper,
                    "reproduced": one.reproduced,
                    "draws": list(one.draws),
                }
                for one in self.figures
            ],
            "workloads": [one.document() for one in self.compared],
            "draws": {
                str(seed): {group: _policies(runs) for group, runs in other.runs.items()}
                for seed, other in self.results.others.items()
            },
            "one_task": {"policies": _policies(runs[ALONE])},
            "ablations": [
                {"condition": condition, "variant": variant, **run.document()}
                for (condition, variant), run in self.results.ablations.items()
            ],
            "order": {"workers": order.workers, "ebf_s": order.ebf_s, "fcfs_s": order.fcfs_s} if order else None,
        }


def _policies(runs: Mapping[str, PolicyRun]) -> dict[str, Any]:
    return {policy: run.document() for policy, run in runs.items()}


def _spread(first: PaperFigure, others: Sequence[PaperFigure]) -> PaperFigure:
    values = [one.reproduced for one in (first, *others) if one.reproduced is not None]
    return replace(first, draws=tuple(values) if len(values) > 1 else ())


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
