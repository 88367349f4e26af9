"""Workloads of many shapes, to compare policies beyond the one workload that the paper describes.

The numbers below are ours: ranges wide enough that arrivals ramp up or come at once, that stages are short or long, and
that a batch resembles the one before it or is much longer. Nothing here is fitted to the result of a policy.
"""

from __future__ import annotations

import numpy as np

from shared.policy.scaling.workload import UNREACHED, Stage
from treadle.lab.replay.distrs.trace import Floats, RewardTrace, TracedBatch, TracedTask

SIZES = (64, 384)
"""Requests of a batch; a task keeps its size."""
ITERATIONS = (6, 10)
"""Batches of a task."""
COSTS = (1.0, 4.0, 10.0, 40.0)
"""Costs of a worker."""
EXECUTION_S = (2.0, 40.0)
"""Median of a stage."""
EXECUTION_SPREAD = (0.1, 0.9)
"""Standard deviation of the logarithm of a stage's executions."""
TIMEOUTS = (3.0, 8.0)
"""Timeout of a stage, in medians."""
LONG_SHARE = (0.0, 0.03)
"""Executions that only the timeout ends."""
STOPPED_SHARE = (0.0, 0.3)
"""Requests that end after a stage."""
ROLLOUT_S = (20.0, 240.0)
"""Median seconds from a batch's start to an arrival."""
ROLLOUT_SPREAD = (0.1, 0.7)
"""Standard deviation of the logarithm of these seconds."""
GROWTH = (0.0, 0.4)
"""Standard deviation of the logarithm of a batch's rollout against that of the batch before it."""
GAP_S = (5.0, 150.0)
"""From the completion of a batch to the start of the next."""
START_S = 100.0
"""Seconds within which the tasks begin."""
DELAYS_S = (2.0, 3.0, 5.0, 10.0)
"""D."""


def varied(chance: np.random.Generator, *, tasks: int | None = None, stages: int | None = None) -> RewardTrace:
    """A workload in a closed loop: 2 to 6 tasks of one workflow with 1 to 4 stages.

    Args:
        chance: equally seeded ones give the same workload.
        tasks: instead of the drawn number.
        stages: instead of the drawn number.
    """
    tasks = int(chance.integers(2, 7)) if tasks is None else tasks
    stages = int(chance.integers(1, 5)) if stages is None else stages
    medians = [_between(chance, EXECUTION_S) for _ in range(stages)]
    workflow = tuple(
        Stage(f"s{number}", float(chance.choice(COSTS)), median * float(chance.uniform(*TIMEOUTS)))
        for number, median in enumerate(medians)
    )
    return RewardTrace(
        stages=workflow,
        max_extra_delay_s=float(chance.choice(DELAYS_S)),
        tasks=tuple(_task(chance, f"task-{number}", workflow, medians) for number in range(tasks)),
    )


def _task(chance: np.random.Generator, name: str, stages: tuple[Stage, ...], medians: list[float]) -> TracedTask:
    size, iterations = int(_between(chance, SIZES)), int(chance.integers(*ITERATIONS, endpoint=True))
    rollout_s, spread = _between(chance, ROLLOUT_S), float(chance.uniform(*ROLLOUT_SPREAD))
    length_growth = float(chance.uniform(*GROWTH))
    kinds = [
        (
            median * float(chance.uniform(0.7, 1.4)),
            float(chance.uniform(*EXECUTION_SPREAD)),
            float(chance.uniform(*LONG_SHARE)),
            float(chance.uniform(*STOPPED_SHARE)),
        )
        for median in medians
    ]
    gaps = np.append(chance.uniform(0.0, START_S), chance.uniform(*GAP_S) * chance.uniform(0.9, 1.1, iterations - 1))
    batches = []
    for gap in gaps:
        pace = rollout_s * float(np.exp(chance.normal(0.0, length_growth)))
        arrivals = np.sort(pace * np.exp(chance.normal(0.0, spread, size)))
        batches.append(TracedBatch(arrivals, _executions(chance, stages, kinds, size), gap_s=float(gap)))
    return TracedTask(name, tuple(batches))


def _executions(
    chance: np.random.Generator, stages: tuple[Stage, ...], kinds: list[tuple[float, float, float, float]], size: int
) -> Floats:
    """(stages, size) Seconds; NaN after the stage at which a request stopped."""
    rows, stopped = [], np.zeros(size, bool)
    for stage, (median, spread, long_share, stopped_share) in zip(stages, kinds, strict=True):
        lasts = median * np.exp(chance.normal(0.0, spread, size))
        lasts = np.where(chance.uniform(size=size) < long_share, np.inf, lasts).clip(max=stage.timeout_s)
        rows.append(np.where(stopped, UNREACHED, lasts))
        stopped |= (chance.uniform(size=size) < stopped_share) | (lasts >= stage.timeout_s)
    return np.stack(rows)


def _between(chance: np.random.Generator, limits: tuple[float, float]) -> float:
    """Log-uniform."""
    return float(np.exp(chance.uniform(*np.log(limits))))
