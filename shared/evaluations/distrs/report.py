"""What comes out: each figure of the paper beside what was reproduced, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.evaluations.distrs.jobs import ALONE, ARCHITECTURES, GIVEN, Outcomes
from shared.policy.workload import Stage
from shared.replay.distrs.evaluation import (
    PAPER,
    PAPER_NORMALISED,
    PAPER_ORDER,
    PAPER_SEARCH_S,
    PAPER_SINGLE_S,
    Run,
    dearest,
)


@dataclass(frozen=True)
class Figure:
    """A number that the paper publishes, and ours."""

    figure: str
    unit: str
    """`x` (a ratio) or `s`."""
    paper: float | None
    """None: it is only drawn, or said in words."""
    reproduced: float | None
    """None: this run has no such number (too few workers were tried, or nothing ran)."""
    said: str = ""
    """The paper's words where it gives no number."""


@dataclass(frozen=True)
class Report:
    """One evaluation."""

    stages: Sequence[Stage]
    tasks: int
    """That train at once."""
    max_extra_delay_s: float
    outcomes: Outcomes
    search_ms: Mapping[int, float]
    """By number of requests."""

    @property
    def figures(self) -> list[Figure]:
        """Beside the paper; of a given trace there are none."""
        return [] if GIVEN in self.outcomes.runs else list(self._figures())

    def _figures(self) -> Iterator[Figure]:
        gpu = dearest(self.stages)
        cpu = 1 - gpu
        for number, architecture in zip((10, 11), ARCHITECTURES, strict=True):
            runs, paper = self.outcomes.runs[architecture], PAPER[architecture]
            zero_queue, distrs = runs["zq-dedicated"], runs["distrs"]
            for what, stage in (("GPU", gpu), ("CPU", cpu)):
                yield Figure(
                    f"{number}: {what} time, ZQ-Dedicated / DistRS, {architecture}",
                    "x",
                    paper[f"{what.lower()}_ratio"],
                    _ratio(float(zero_queue.worker_s[stage]), float(distrs.worker_s[stage])),
                )
            delay = distrs.mean_delay_s
            yield Figure(f"{number}: mean extra delay, DistRS, {architecture}", "s", paper["mean_delay_s"], delay)
        for architecture in ARCHITECTURES:
            for name, policy in (("DistRS", "distrs"), ("ideal", "ideal")):
                run = self.outcomes.runs[architecture][policy]
                held = _ratio(float(run.worker_s[gpu]), float(run.busy_s[gpu]))
                yield Figure(f"12: normalised GPU time, {name}, {architecture}", "x", None, held, PAPER_NORMALISED)
        for what, policy in (("history-based", "history"), ("timeout-aware (DistRS)", "distrs")):
            delay = self.outcomes.runs[ALONE][policy].mean_delay_s
            yield Figure(f"13: mean extra delay, {what}, one task", "s", PAPER_SINGLE_S[policy], delay)
        order = self.outcomes.order
        fewer = order.times_fewer(self.max_extra_delay_s) if order else None
        yield Figure(f"14: GPUs for a mean delay <= {self.max_extra_delay_s:g} s, FCFS / EBF", "x", PAPER_ORDER, fewer)
        for requests, seconds in PAPER_SEARCH_S.items():
            taken = self.search_ms.get(requests)
            ours = None if taken is None else taken / 1e3
            yield Figure(f"15: search time, {requests:,} requests", "s", seconds, ours)

    def document(self) -> dict[str, Any]:
        """What `--json` prints.

        `policies` are those of the colocated trace, or of the given one; for a given one that and `search_ms` is all.
        """
        runs, search = self.outcomes.runs, {str(count): taken for count, taken in self.search_ms.items()}
        if GIVEN in runs:
            return {"policies": _policies(runs[GIVEN]), "search_ms": search}
        order = self.outcomes.order
        return {
            "policies": _policies(runs["colocated"]),
            "search_ms": search,
            "disaggregated": {"policies": _policies(runs["disaggregated"])},
            "figures": [
                {"figure": one.figure, "unit": one.unit, "paper": one.paper, "reproduced": one.reproduced}
                for one in self.figures
            ],
            "one_task": {"policies": _policies(runs[ALONE])},
            "ablations": [
                {"condition": condition, "variant": variant, **run.document()}
                for (condition, variant), run in self.outcomes.ablations.items()
            ],
            "order": {"workers": order.workers, "ebf_s": order.ebf_s, "fcfs_s": order.fcfs_s} if order else None,
        }


def _policies(runs: Mapping[str, Run]) -> dict[str, Any]:
    return {policy: run.document() for policy, run in runs.items()}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
