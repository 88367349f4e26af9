"""Experiments: systems, rates of the service, and variants of what the paper does not publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

from treadle.lab.replay.search.assumptions import (
    CLIENT,
    OURS,
    PAGES,
    PROVIDER,
    TRAINER,
    Client,
    Ours,
    Provider,
    TrainingStep,
)
from treadle.lab.replay.search.clients import Clients, Limiter
from treadle.lab.replay.search.measures import StepRun
from treadle.lab.replay.search.provider import SimulatedProvider
from treadle.lab.replay.search.rollout import Caller, Replacement, Rollout
from treadle.lab.replay.search.simulated_mesh import SearchMesh
from treadle.lab.replay.search.trace import PAGES as PAGES_NAME
from treadle.lab.replay.search.trace import SEARCH, SearchBatch
from treadle.lab.replay.search.virtual_time import VirtualTime

Sharing = Literal["none", "each the limit", "each a part", "mesh"]
OURS_NAME: Final = "treadle"
ALONE: Final = "alone"
SYSTEMS: Mapping[str, Sharing] = {
    ALONE: "none",
    "limiter, N x": "each the limit",
    "limiter, 1/N": "each a part",
    OURS_NAME: "mesh",
}
"""The paper's baseline; a limiter in each of N processes with the limit itself, or with its N-th part; ours."""
PAPER_RATIO: Final = 1.5
"""§6.2: step duration of the baseline against ARL-Tangram's, an average of ten steps."""


@dataclass(frozen=True)
class Setting:
    """All parameters of an experiment."""

    provider: Provider = PROVIDER
    trainer: TrainingStep = TRAINER
    client: Client = CLIENT
    ours: Ours = OURS
    replacement: Replacement = "at once"
    questions: int = 1
    """Recorded trajectories that one trajectory consists of."""

    def concerning(self, sharing: Sharing) -> Setting:
        """Return this setting without what has no effect on the rollout under a system: equal ones give equal runs."""
        setting = replace(self, trainer=replace(self.trainer, update_s=TRAINER.update_s))
        return replace(setting, client=CLIENT) if sharing == "mesh" else replace(setting, ours=OURS)

    def scaled(self, divisor: int) -> Setting:
        """Return a setting with a smaller batch, and limits that are smaller by as much."""
        provider = replace(
            self.provider,
            per_s=self.provider.per_s / divisor,
            concurrency=max(1, self.provider.concurrency // divisor),
        )
        return replace(self, provider=provider, trainer=replace(self.trainer, batch=self.trainer.batch // divisor))


DEFAULT: Final = Setting()
RATES: Final = (25.0, 50.0, 100.0, 200.0, 400.0)
"""Limits of the searches, calls a second. The concurrency is four times as many."""


def at_rate(per_s: float, setting: Setting = DEFAULT) -> Setting:
    """Return the setting with another limit of searches."""
    return replace(setting, provider=replace(setting.provider, per_s=per_s, concurrency=round(4 * per_s)))


VARIANTS: Mapping[str, Setting] = {
    "retries at once": replace(DEFAULT, client=replace(CLIENT, backoff_s=0.0)),
    "retries heed Retry-After": replace(DEFAULT, client=replace(CLIENT, heeds=1)),
    "backoff from 5 s": replace(DEFAULT, client=replace(CLIENT, backoff_s=5.0)),
    "nothing ever hangs": replace(DEFAULT, provider=replace(PROVIDER, overload=1e9)),
    "one call in 1,000 hangs": replace(DEFAULT, provider=replace(PROVIDER, hangs=0.001)),
    "timeout 60 s for all": replace(
        DEFAULT, client=replace(CLIENT, timeout_s=60.0), ours=replace(OURS, timeout_s=60.0)
    ),
    "no slow-downs": replace(DEFAULT, provider=replace(PROVIDER, slow_every_s=0.0)),
    "replaced after the round": replace(DEFAULT, replacement="after the round"),
    "lost ones are masked": replace(DEFAULT, replacement="never"),
    "update of 600 s": replace(DEFAULT, trainer=replace(TRAINER, update_s=600.0)),
    "another trainer is idle": replace(DEFAULT, client=replace(CLIENT, trainers=2)),
    "four questions each": replace(DEFAULT, questions=4),
}
"""One thing changed at a time."""


def replay(system: str, setting: Setting, batch: SearchBatch, seed: int) -> StepRun:
    """Run one step under one system. The same seed gives all systems the same slow-downs.

    Raises:
        SimulationError: a trajectory waits forever.
    """
    time, providers = VirtualTime(), _providers(setting, seed)
    run = StepRun(system, len(batch), [0.0] * len(batch))
    caller = _caller(SYSTEMS[system], setting, time, providers, Random(f"{seed} caller"))
    Rollout(time, caller, batch, setting.trainer, setting.replacement, run).run()
    run.measure(providers)
    return run


def _providers(setting: Setting, seed: int) -> dict[str, SimulatedProvider]:
    search = setting.provider
    pages = replace(
        search,
        per_s=search.per_s * PAGES.per_s,
        concurrency=max(1, round(search.concurrency * PAGES.per_s)),
        latency_s=PAGES.latency_s,
    )
    return {
        name: SimulatedProvider(rules, Random(f"{seed} {name}"))
        for name, rules in ((SEARCH, search), (PAGES_NAME, pages))
    }


def _caller(
    sharing: Sharing, setting: Setting, time: VirtualTime, providers: Mapping[str, SimulatedProvider], random: Random
) -> Caller:
    if sharing == "mesh":
        return SearchMesh(time, providers, setting.ours, random)
    processes = setting.client.processes
    parts = {"none": 0, "each the limit": 1, "each a part": processes * setting.client.trainers}[sharing]
    limiters = {
        (process, name): Limiter(
            time, one.rules.per_s / parts, max(1.0, one.rules.burst / parts), max(1, one.rules.concurrency // parts)
        )
        for name, one in providers.items()
        for process in range(processes if parts else 0)
    }
    return Clients(time, providers, setting.client, random, limiters)
