"""Trainers in a closed loop, after a traced workload: rollouts send a reward request for each sample."""

import asyncio
import math
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from shared.policy.scaling.workload import Stage
from treadle.lab.bench.figures import BenchError
from treadle.lab.bench.mesh import BenchClient
from treadle.lab.replay.distrs.trace import TracedBatch, TracedTask

REPORT_EVERY_S = 1.05
"""The proxy accepts one report of a batch each second."""
RESOURCE = "slots"
"""Resource of every stage: a sleeping action needs no core."""


def workflow(stages: Iterable[Stage], max_extra_delay_s: float) -> dict[str, object]:
    """Return a workflow of sleeping stages."""
    asleep = [
        {
            "name": stage.name,
            "kind": "sleep",
            "units": {RESOURCE: 1},
            "timeout_s": stage.timeout_s,
            "worker_cost": stage.worker_cost,
        }
        for stage in stages
    ]
    return {"stages": asleep, "max_extra_delay_s": max_extra_delay_s}


def requests(batch: TracedBatch, stages: Sequence[Stage]) -> list[bytes]:
    """Return the reward requests of a batch, in the order of arrival."""
    return [
        msgspec.json.encode(
            {
                "request_id": f"r{number}",
                "stage_params": {
                    stage.name: {"seconds": float(asleep)} for stage, asleep in zip(stages, column, strict=True)
                },
            }
        )
        for number, column in enumerate(batch.executions_s.T)
    ]


@dataclass
class Trainer:
    """Trainer of one task: its batches, one after another."""

    http: BenchClient
    traced: TracedTask
    stages: tuple[Stage, ...]
    done: list[str] = field(default_factory=list)
    """Batches that are complete, the newest last."""

    async def train(self, first: int, last: int, wait_s: float = 0.0) -> None:
        """Run the batches from `first` to before `last`, each after its gap; the first `wait_s` later."""
        for batch in self.traced.batches[first:last]:
            await asyncio.sleep(batch.gap_s + wait_s)
            self.done.append(await self._rollout(batch))
            wait_s = 0.0

    async def _rollout(self, traced: TracedBatch) -> str:
        """Run one batch from its opening to its end; return its id."""
        lines = requests(traced, self.stages)
        batch = await self.http.open_batch(traced.size, self.traced.task)
        began, sent, report_s = perf_counter(), 0, REPORT_EVERY_S
        while sent < traced.size:
            next_s = min(float(traced.arrivals_s[sent]), report_s)
            await asyncio.sleep(max(0.0, began + next_s - perf_counter()))
            elapsed_s = perf_counter() - began
            due = int(np.searchsorted(traced.arrivals_s, elapsed_s, side="right"))
            if due > sent:
                accepted = await self.http.submit_all(batch, b"\n".join(lines[sent:due]))
                if accepted != due - sent:
                    raise BenchError(f"{accepted:,} of {due - sent:,} reward requests were accepted")
                sent = due
            elif elapsed_s >= report_s:
                await self.http.report(batch, _lengths(traced, sent, elapsed_s))
                report_s = elapsed_s + REPORT_EVERY_S
        async for _ in self.http.follow(batch):
            pass
        return batch


def _lengths(traced: TracedBatch, sent: int, elapsed_s: float) -> list[float]:
    """Return the tokens so far of samples that are still generated, spread evenly."""
    if traced.lengths is None:
        return []
    so_far = traced.lengths[sent:] * elapsed_s / traced.arrivals_s[sent:]
    return [float(tokens) for tokens in so_far if math.isfinite(tokens)]


async def together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all; raise the first exception and cancel the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
