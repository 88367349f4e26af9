"""The trainers: trajectories generate, and call their services when they have ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.trace import GpuBatch, GpuCall
from treadle.lab.replay.search.virtual_time import VirtualTime
from treadle.lab.replay.tangram.simulated_mesh import SimulationError

MOST_S: Final = 1e6
"""Longest batch: more is a defect of the replay."""

Done = Callable[[], None]


class ModelServing(Protocol):
    """Serving of calls by one system. It adds each call to the run, and calls `done` at its end."""

    def call(self, call: GpuCall, done: Done) -> None: ...


def run_batch(time: VirtualTime, serving: ModelServing, batch: GpuBatch, run: GpuRun) -> GpuRun:
    """Run a batch until its last call has ended.

    Raises:
        SimulationError: a call waits forever.
    """
    left = len(batch.calls)

    def done() -> None:
        nonlocal left
        left -= 1
        run.ended_s = time.now

    for call in batch.calls:
        time.at(call.due_s, partial(serving.call, call, done))
    while left:
        if not time.step() or time.now > MOST_S:
            raise SimulationError(f"{left} calls wait at {time.now:.0f} s")
    return run
