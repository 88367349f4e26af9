"""Jobs: each system on each seed, at several rates of the service, and variants of the unpublished parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from treadle.lab.evaluations.pool import OnDone, run_jobs
from treadle.lab.replay.search.evaluation import (
    ALONE,
    DEFAULT,
    OURS_NAME,
    RATES,
    SYSTEMS,
    VARIANTS,
    Setting,
    at_rate,
    replay,
)
from treadle.lab.replay.search.measures import StepRun
from treadle.lab.replay.search.trace import SearchBatch
from treadle.lab.replay.search.workload import generate

SEEDS: int = 3
"""Seeds of the evaluation, from 1 on."""
QUICK: int = 16
"""Divisor of batches and limits with `--quick`."""
MAIN: str = "as it is"
WEIGHTS: Mapping[str, float] = {OURS_NAME: 20.0}
"""Relative duration of a system's replay; the others take 1."""


def of_rate(per_s: float) -> str:
    """Return the name of the setting with this limit of searches."""
    return f"{per_s:g} a second"


@dataclass(frozen=True)
class SearchWorkload:
    """Source of trajectories and seeds."""

    seeds: int = SEEDS
    scale: int = 1
    """Divisor of batches and limits."""
    given: SearchBatch = ()
    """A trace of one's own; empty: generated ones."""


def batch_of(setting: Setting, seed: int) -> SearchBatch:
    """Return the trajectories of a step: the same for all systems."""
    return generate(np.random.default_rng(seed), setting.trainer, setting.provider, setting.questions)


@dataclass(frozen=True)
class SearchJob:
    """One system under one setting with one seed."""

    system: str
    setting: Setting
    """Without what has no effect on this system."""
    seed: int
    given: SearchBatch = ()

    @property
    def name(self) -> str:
        return f"{self.system}, {self.setting.provider.per_s:g} a second, seed {self.seed}"

    @property
    def weight(self) -> float:
        return WEIGHTS.get(self.system, 1.0) * self.setting.questions

    def __call__(self) -> StepRun:
        return replay(self.system, self.setting, self.given or batch_of(self.setting, self.seed), self.seed)


@dataclass
class SearchResults:
    """Results of all jobs."""

    runs: dict[str, dict[str, list[StepRun]]] = field(default_factory=dict)
    """Setting -> system -> its steps, by seed."""


def settings(workload: SearchWorkload) -> dict[str, tuple[Setting, tuple[str, ...]]]:
    """Return the settings by name, each with the systems that run under it."""
    named: dict[str, tuple[Setting, tuple[str, ...]]] = {MAIN: (DEFAULT, tuple(SYSTEMS))}
    if not workload.given:
        named |= {of_rate(per_s): (at_rate(per_s), tuple(SYSTEMS)) for per_s in RATES}
        named |= {
            name: (setting, tuple(SYSTEMS) if setting.client.trainers > 1 else (ALONE, OURS_NAME))
            for name, setting in VARIANTS.items()
        }
    if workload.scale > 1:
        named = {name: (setting.scaled(workload.scale), systems) for name, (setting, systems) in named.items()}
    return named


def evaluation(workload: SearchWorkload) -> Sequence[SearchJob]:
    """Return the different jobs of all settings."""
    named = settings(workload)
    return list(
        dict.fromkeys(job for name in named for system in named[name][1] for job in _jobs(workload, name, system))
    )


def _jobs(workload: SearchWorkload, name: str, system: str) -> list[SearchJob]:
    """Return the jobs of a system under a setting, by seed."""
    setting = settings(workload)[name][0].concerning(SYSTEMS[system])
    return [SearchJob(system, setting, seed, workload.given) for seed in range(1, workload.seeds + 1)]


def run_all(workload: SearchWorkload, processes: int, on_done: OnDone) -> SearchResults:
    """Run the jobs (`run_jobs`)."""
    jobs = evaluation(workload)
    runs: list[StepRun] = run_jobs(jobs, processes, on_done)
    found = dict(zip(jobs, runs, strict=True))
    return SearchResults(
        {
            name: {system: [found[job] for job in _jobs(workload, name, system)] for system in systems}
            for name, (_, systems) in settings(workload).items()
        }
    )
