"""A planner with short calls, and its inputs: batches of four requests that draw from one pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchesObserved,
    BatchRemoved,
    Command,
    FirstRequestArrived,
    NodesChanged,
    ObservedBatch,
    PublishTarget,
    TimerFired,
)
from shared.policy.scaling.workload import BatchRecord, OpenedBatch, PastBatch, Stage

POOL = "cores@default"
RUN = (Stage("run", 1.0, 10.0, POOL),)
NOW = 1_763_700_000.0


def opened(
    batch: str, task: str = "code", *, size: int | None = 4, delay_s: float = 2.0, at: float = NOW
) -> OpenedBatch:
    return OpenedBatch(batch, "ada", task, size, RUN, delay_s, 64.0, at)


def past(
    executions: Sequence[float] = (4.0,) * 4,
    arrivals: Sequence[float] = (0.0,) * 4,
    *,
    task: str = "code",
    gap_s: float = 0.0,
    size: int | None = 4,
    tokens_per_s: float | None = None,
) -> PastBatch:
    before = replace(opened("before", task, size=size, at=NOW - 100), first_arrival_at=NOW - 100 + gap_s)
    return PastBatch(before, BatchRecord(tuple(arrivals), (tuple(executions),)), tokens_per_s)


class PlannerDriver:
    """A planner with short calls for its inputs."""

    def __init__(
        self,
        *,
        cores: int | None = 8,
        floors: dict[str, int] | None = None,
        ceilings: dict[str, int] | None = None,
        cold_start_s: float = 0.0,
        **config: Any,
    ) -> None:
        config = {"strictness": 0.0, "stabilization_s": 0.0, "look_ahead_s": math.inf, **config}
        self.planner = Planner(PlannerConfig(**config), floors or {}, ceilings or {})
        self.cold_start_s = cold_start_s
        if cores is not None:
            self.has(cores)

    def has(self, cores: int, now: float = NOW) -> list[Command]:
        return self.planner.handle(now, NodesChanged({POOL: cores}, {POOL: self.cold_start_s}))

    def open(self, batch: OpenedBatch, *before: PastBatch, now: float = NOW) -> list[Command]:
        return self.planner.handle(now, BatchAdded(batch, before))

    def first(self, batch: str, at: float = NOW) -> list[Command]:
        return self.planner.handle(at, FirstRequestArrived(batch, at))

    def end(self, batch: str, *before: PastBatch, now: float = NOW) -> list[Command]:
        return self.planner.handle(now, BatchRemoved(batch, before))

    def look(self, now: float, **sights: ObservedBatch) -> None:
        assert self.planner.handle(now, BatchesObserved(sights)) == []

    def wake(self) -> list[Command]:
        return self.planner.handle(self.planner.wake_s(), TimerFired())


def target(commands: Sequence[Command]) -> PublishTarget:
    (only,) = [command for command in commands if isinstance(command, PublishTarget)]
    return only


def observed(
    arrived: int, answered: int, queuing: Sequence[float] = (), running: Sequence[float] = ()
) -> ObservedBatch:
    """`queuing`: arrivals of those that wait; `running`: when those that run came and began."""
    waits = np.array([(at, at) for at in queuing])
    runs = np.array([(at, at, at) for at in running])
    return ObservedBatch(arrived, answered, (waits.tobytes(),), (runs.tobytes(),))
