"""The run: random load on a mesh, engines killed at random, each answer compared with its reference.

An answer is wrong if it differs from what the model alone has answered to the same request. An action that ends without
an answer is a failure of the mesh. It is counted and never scored, and its request is sent again later by chance.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from treadle.client.answers import Answer, ModelServiceView
from treadle.client.asynchronous import AsyncTreadle
from treadle.model_demo.cases import SERVICES, Service, agree, answered_value
from treadle.model_demo.engines import kill, running_engines
from treadle.model_demo.models import DemoModels
from treadle.model_demo.references import Reference
from treadle.model_demo.report import DemoProgress, EngineCounts

CALLERS: Final[Mapping[Service, int]] = {"judge": 3, "similarity": 6, "reward": 6}
"""Callers of each service, which send one request after the other."""
PAUSE_S: Final = 0.3
"""Mean pause of a caller between two requests."""
RARE_PAUSE_S: Final = 6.0
"""The same for the service that is asked for little."""
PHASE_S: Final = 12.0
"""Mean duration of a phase, in which one service is asked for little."""
TIMEOUT_S: Final = 60.0
BUDGET_S: Final = 180.0
WATCH_S: Final = 0.2
SHOWN: Final = 10
_EVICTIONS: Final = re.compile(r'^treadle_gpu_manager_evictions_total\{level="(\w+)"\} ([0-9.]+)$', re.MULTILINE)
_STEPS: Final = re.compile(
    r'^treadle_gpu_manager_step_seconds_count\{outcome="(\w+)",step="(\w+)"\} ([0-9.]+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class KillPlan:
    """Kills of engines at random."""

    every_s: float
    """Mean time between two."""
    spared_s: float
    """Engines that are younger are spared."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Parameters of a run."""

    minutes: float
    seed: int
    kills: KillPlan
    references: Mapping[Service, Sequence[Reference]]


class Run:
    """One run on a mesh."""

    def __init__(
        self, client: AsyncTreadle, manager_url: str, models: DemoModels, plan: RunPlan, progress: DemoProgress
    ) -> None:
        self._client = client
        self._manager_url = manager_url
        self._models = models
        self._plan = plan
        self._progress = progress
        self._rare: Service = SERVICES[0]
        self._began = time.monotonic()

    async def run(self, changed: Callable[[DemoProgress], None]) -> DemoProgress:
        """Run to the end and return the counts. `changed`: called about once a second with the counts so far."""
        seeds = random.Random(self._plan.seed)
        self._began = time.monotonic()
        helpers = [
            asyncio.create_task(each)
            for each in (
                self._watch_memory(),
                self._change_phases(random.Random(seeds.random())),
                self._kill(random.Random(seeds.random())),
                self._show(changed),
            )
        ]
        try:
            async with asyncio.TaskGroup() as callers:
                for service, number in CALLERS.items():
                    for _ in range(number):
                        callers.create_task(self._call(service, random.Random(seeds.random())))
                watching = callers.create_task(_failures(helpers))
                callers.create_task(self._end(watching))
        finally:
            for each in helpers:
                each.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        await self._read_mesh()
        changed(self._progress)
        return self._progress

    @property
    def _is_over(self) -> bool:
        return time.monotonic() - self._began >= self._plan.minutes * 60

    async def _end(self, watching: asyncio.Task[None]) -> None:
        await asyncio.sleep(self._plan.minutes * 60)
        watching.cancel()

    # ---- load ------------------------------------------------------------------------------------------------------

    async def _call(self, service: Service, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.expovariate(1 / (RARE_PAUSE_S if service == self._rare else PAUSE_S)))
            if self._is_over:
                return
            reference = rng.choice(self._plan.references[service])
            began = time.monotonic()
            case = reference.case
            answer = await self._client.run(case.kind, case.params, timeout_s=TIMEOUT_S, budget_s=BUDGET_S)
            self._count(reference, answer, time.monotonic() - began)

    async def _change_phases(self, rng: random.Random) -> None:
        while True:
            self._rare = rng.choice(SERVICES)
            await asyncio.sleep(rng.expovariate(1 / PHASE_S))

    def _count(self, reference: Reference, answer: Answer, seconds: float) -> None:
        progress, case = self._progress, reference.case
        counts = progress.services[case.service]
        counts.repeated += any(stage.attempts > 1 for stage in answer.stages)
        if answer.mask or answer.ended != "ok":
            counts.masked += 1
            why = f"{answer.ended}: {answer.reason}"[:300]
            if why in progress.masked_reasons or len(progress.masked_reasons) < SHOWN:
                progress.masked_reasons[why] = progress.masked_reasons.get(why, 0) + 1
            return
        counts.judged += 1
        counts.seconds.append(seconds)
        value = answered_value(case, answer)
        if value is None or not agree(value, reference.value):
            counts.wrong += 1
            if len(progress.wrong_answers) < SHOWN:
                progress.wrong_answers.append(
                    f"{case.service} about {case.solution.id}: {str(answer.output)[:200]}, alone: {reference.value!r}"
                )

    # ---- disturbance and measurement -------------------------------------------------------------------------------

    async def _kill(self, rng: random.Random) -> None:
        kills = self._plan.kills
        while True:
            await asyncio.sleep(rng.expovariate(1 / kills.every_s))
            while not self._is_over:
                engines = await asyncio.to_thread(running_engines, self._models)
                engines = [one for one in engines if one.age_s >= kills.spared_s]
                if engines and kill(victim := rng.choice(engines)):
                    self._progress.services[victim.service].kills += 1
                    break
                await asyncio.sleep(1)

    async def _watch_memory(self) -> None:
        while True:
            engines = await asyncio.to_thread(running_engines, self._models)
            progress = self._progress
            progress.used_gb = sum(one.rss_gb for one in engines)
            progress.peak_gb = max(progress.peak_gb, progress.used_gb)
            await asyncio.sleep(WATCH_S)

    async def _show(self, changed: Callable[[DemoProgress], None]) -> None:
        while True:
            await self._read_mesh()
            changed(self._progress)
            await asyncio.sleep(1)

    async def _read_mesh(self) -> None:
        progress = self._progress
        progress.elapsed_s = time.monotonic() - self._began
        progress.states = {view.name: state_of(view) for view in await self._client.model_services.all()}
        async with aiohttp.ClientSession(self._manager_url) as http, http.get("/metrics") as answer:
            progress.engines = read_engine_counts(await answer.text())


async def _failures(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all tasks end, and raise the first error."""
    for task in asyncio.as_completed(tasks):
        await task


def state_of(view: ModelServiceView) -> str:
    """Return the state of a service's engine, as `treadle services` shows it."""
    for one in view.engines:
        return f"{one.state} ({one.level})" if one.level else one.state
    return "cold"


def read_engine_counts(metrics: str) -> EngineCounts:
    """Return the counts in the metrics of a GPU manager."""
    counts = EngineCounts()
    for level, number in _EVICTIONS.findall(metrics):
        counts.evictions[level] = int(float(number))
    for outcome, step, number in _STEPS.findall(metrics):
        amount = int(float(number))
        if outcome == "ok":
            counts.steps[step] = amount
        else:
            counts.failed[step] = counts.failed.get(step, 0) + amount
        if outcome == "oom":
            counts.out_of_memory += amount
    return counts
