"""DistRS's evaluation (§6.2) with measured times of kernels that models wrote, as the GPU stage of its workload.

Everything else is the workload of `treadle replay distrs`: arrivals, compile times, states, and runs that only the
timeout ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from treadle.lab.replay.distrs.generate import Architecture, generate
from treadle.lab.replay.distrs.trace import Floats, RewardTrace, TracedBatch, TracedTask
from treadle.lab.replay.tangram.assumptions import assumed

RUN: int = 1
"""Number of the GPU stage."""


@dataclass(frozen=True)
class KernelRuns:
    """Evaluation of one kernel on a GPU that it has alone."""

    trials: int = assumed(100, "data's README: an evaluation runs each kernel about 100 times, and so its reference")
    start_s: float = assumed(2.0, "ours: a process with its CUDA context, loading the kernel, inputs, the comparison")
    iterations: int = assumed(12, "ours: batches of each task; 50 in DistRS §3, which takes four times as long")


RUNS = KernelRuns()


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Times of one run, ms."""

    kernel_ms: float
    reference_ms: float
    """Of the operator that it replaces; on another GPU."""

    def seconds(self, runs: KernelRuns = RUNS) -> float:
        """Time for which its evaluation holds a GPU."""
        return runs.start_s + runs.trials * (self.kernel_ms + self.reference_ms) / 1e3


def kernel_trace(
    rng: np.random.Generator, kernel_rng: np.random.Generator, architecture: Architecture,
    kernels: Sequence[MeasuredKernel], size: int, runs: KernelRuns = RUNS,
) -> RewardTrace:  # fmt: skip
    """Return DistRS's workload with evaluations of these kernels, each request's drawn at random.

    Args:
        rng: of the workload: the same draws give that of `treadle replay distrs`.
        kernel_rng: of the kernels.
        architecture: of the trainer.
        kernels: at least one.
        size: requests of a batch.
        runs: what an evaluation does.

    Raises:
        ValueError: there is no kernel.
    """
    if not kernels:
        raise ValueError("no kernels: name a folder that has them")
    trace = generate(rng, architecture=architecture, iterations=runs.iterations, size=size)
    seconds = np.array([one.seconds(runs) for one in kernels])
    made: dict[int, Floats] = {}

    def with_kernels(batch: TracedBatch) -> TracedBatch:
        if id(batch.executions_s) not in made:  # the tasks have the same batches
            made[id(batch.executions_s)] = _executions(
                kernel_rng, batch.executions_s, seconds, trace.stages[RUN].timeout_s
            )
        return replace(batch, executions_s=made[id(batch.executions_s)])

    tasks = (TracedTask(task.task, tuple(map(with_kernels, task.batches))) for task in trace.tasks)
    return replace(trace, tasks=tuple(tasks))


def _executions(rng: np.random.Generator, before: Floats, seconds: Floats, timeout_s: float) -> Floats:
    drawn = np.minimum(seconds[rng.integers(len(seconds), size=before.shape[1])], timeout_s)
    run = np.where(np.isnan(before[RUN]) | (before[RUN] >= timeout_s), before[RUN], drawn)
    return np.stack([before[0], run])
