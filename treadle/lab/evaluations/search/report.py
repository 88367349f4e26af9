"""Report: the paper's ratio compared with its reproduction, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.lab.evaluations.distrs.report import PaperFigure
from treadle.lab.evaluations.search.jobs import MAIN, SearchResults, SearchWorkload, of_rate, settings
from treadle.lab.replay.search.assumptions import CLIENT, OURS, PAGES, PROVIDER, TRAINER
from treadle.lab.replay.search.evaluation import ALONE, OURS_NAME, PAPER_RATIO, RATES, VARIANTS
from treadle.lab.replay.search.measures import StepRun
from treadle.lab.replay.search.trace import SEARCH
from treadle.lab.replay.tangram.assumptions import assumptions_of

ASSUMED = {"trainer": TRAINER, "provider": PROVIDER, "pages": PAGES, "client": CLIENT, "ours": OURS}
"""Groups of assumptions by name."""


@dataclass(frozen=True)
class SearchReport:
    """One evaluation."""

    workload: SearchWorkload
    results: SearchResults

    @property
    def figures(self) -> list[PaperFigure]:
        """Comparison with the paper; empty for a trace of one's own."""
        return [] if self.workload.given else list(self._figures())

    def _figures(self) -> Iterator[PaperFigure]:
        for setting in (MAIN, *map(of_rate, RATES), *VARIANTS):
            name = f"§6.2: step, {ALONE} / ours, {setting}"
            yield self._figure(name, "x", PAPER_RATIO, self.ratios(ALONE, setting))
        for setting, runs in self.results.runs.items():
            for system in (one for one in runs if one not in (ALONE, OURS_NAME)):
                yield self._figure(f"step, {system} / ours, {setting}", "x", None, self.ratios(system, setting))

    def _figure(self, name: str, unit: str, paper: float | None, draws: tuple[float, ...]) -> PaperFigure:
        return PaperFigure(
            name, unit, paper, float(np.mean(draws)), "" if paper else "none", draws if len(draws) > 1 else ()
        )

    def update_s(self, setting: str) -> float:
        """Seconds of a step after its last reward, under a setting."""
        return settings(self.workload)[setting][0].trainer.update_s

    def ratios(self, system: str, setting: str) -> tuple[float, ...]:
        """Return the step of a system relative to ours, by seed."""
        update_s, runs = self.update_s(setting), self.results.runs[setting]
        pairs = zip(runs[system], runs[OURS_NAME], strict=True)
        return tuple(theirs.step_s(update_s) / ours.step_s(update_s) for theirs, ours in pairs)

    def values(self, setting: str, system: str, of: Callable[[StepRun], float]) -> tuple[float, ...]:
        """Return a measure of a system under a setting, by seed."""
        return tuple(of(run) for run in self.results.runs[setting][system])

    def measures(self, setting: str) -> dict[str, Callable[[StepRun], float]]:
        """Return the measures of the tables by name."""
        update_s = self.update_s(setting)
        return {
            "step, s": lambda run: run.step_s(update_s),
            "rollout, s": lambda run: run.rollout_s,
            "ACT, s": lambda run: run.mean_act_s,
            "lost": lambda run: run.lost,
            "given up": lambda run: run.missing,
            "refused": lambda run: run.calls("refused"),
            "hung": lambda run: run.calls("hung"),
            "failed": lambda run: run.calls("failed"),
            "use": lambda run: 100.0 * run.use[SEARCH],
            "useful use": lambda run: 100.0 * run.useful_use,
        }

    def document(self) -> dict[str, Any]:
        """Return the document of `--json`; for a trace of one's own without figures."""
        return {
            "seeds": self.workload.seeds,
            "scale": self.workload.scale,
            "runs": [
                {"setting": setting, "seed": seed, **run.document(self.update_s(setting))}
                for setting, systems in self.results.runs.items()
                for runs in systems.values()
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
                group: {name: value for name, value, _ in assumptions_of(of)} for group, of in ASSUMED.items()
            },
        }  # fmt: skip
