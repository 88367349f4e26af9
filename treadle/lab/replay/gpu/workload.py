"""Batches of MOPD and of MOPD + DeepSearch (§6.1): which teacher or judge is called when, and for how long.

A trajectory generates and then calls its service once. Its time is its tokens at its decoding speed. A teacher's
execution is proportional to the tokens that it reads. Each RL task has its own share and lengths, so that the load of
one teacher comes earlier or later than that of another. DeepSearch trajectories are those of its own replay
(`treadle.lab.replay.search`), with search calls that take the service's latency.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import numpy as np

from shared.policy.model.elasticity import Elasticity
from treadle.lab.replay.gpu.assumptions import JUDGE, ROLLOUT, TEACHERS, JudgeModel, TaskRollout, Teachers
from treadle.lab.replay.gpu.trace import GpuBatch, GpuCall, ModelService
from treadle.lab.replay.search.assumptions import PROVIDER, TRAINER
from treadle.lab.replay.search.workload import generate as generate_search

Mix = Literal["MOPD", "MOPD+Search"]
MIXES: Final[tuple[Mix, ...]] = ("MOPD", "MOPD+Search")
JUDGE_NAME: Final = "judge"
PAPERS_DEGREE: Final = 4
"""Degree with which the assumed execution times are meant."""


def generate(
    rng: np.random.Generator, mix: Mix, size: int, teachers: Teachers = TEACHERS, judge: JudgeModel = JUDGE,
    rollout: TaskRollout = ROLLOUT,
) -> GpuBatch:  # fmt: skip
    """Return the batches of the RL jobs of a mix: `size` trajectories of MOPD, and as many of DeepSearch."""
    speeds = Elasticity("amdahl", serial=teachers.serial)
    single_s = speeds.single(teachers.act_s, PAPERS_DEGREE)
    services = [
        ModelService(f"teacher-{number}", teachers.weights_gb, speeds, single_s, teachers.concurrency)
        for number in range(1, teachers.count + 1)
    ]
    shares = np.exp(rng.normal(0.0, teachers.share_spread, teachers.count))
    medians = rollout.median_tokens * np.exp(rng.normal(0.0, rollout.task_spread, teachers.count))
    tasks = rng.choice(teachers.count, size, p=shares / shares.sum())
    tokens = np.minimum(rollout.most_tokens, medians[tasks] * np.exp(rng.normal(0.0, rollout.spread, size)))
    dues_s = tokens * rollout.token_s * np.exp(rng.normal(0.0, rollout.speed_spread, size))
    drawn = zip(tasks.tolist(), dues_s.tolist(), (single_s * tokens / tokens.mean()).tolist(), strict=True)
    calls = [GpuCall(at, services[task].name, due_s, work_s) for at, (task, due_s, work_s) in enumerate(drawn)]
    services = [_profiled(one, calls) for one in services]
    if mix == "MOPD+Search":
        one, searches = _searches(rng, size, judge, rollout)
        services.append(one)
        calls += searches
    return GpuBatch(tuple(services), tuple(sorted(calls, key=lambda call: (call.due_s, call.trajectory))))


def _profiled(service: ModelService, calls: list[GpuCall]) -> ModelService:
    """Return the service with the mean of its calls as its profile."""
    mine = [call.single_s for call in calls if call.service == service.name]
    return replace(service, profile_s=float(np.mean(mine))) if mine else service


def _searches(
    rng: np.random.Generator, size: int, judge: JudgeModel, rollout: TaskRollout
) -> tuple[ModelService, list[GpuCall]]:
    speeds = Elasticity("amdahl", serial=judge.serial)
    mean_s = speeds.single(judge.act_s, PAPERS_DEGREE)
    service = ModelService(JUDGE_NAME, judge.weights_gb, speeds, mean_s, judge.concurrency)
    batch = generate_search(rng, replace(TRAINER, batch=size), PROVIDER, rollout.questions)
    factors = np.exp(rng.normal(-(judge.spread**2) / 2.0, judge.spread, size)).tolist()
    calls = []
    for number, (one, factor) in enumerate(zip(batch, factors, strict=True)):
        due_s = one.last_s + sum(call.think_s + call.work * PROVIDER.latency_s for call in one.calls)
        calls.append(GpuCall(size + number, JUDGE_NAME, due_s, mean_s * factor))
    return service, calls
