"""Small traces in whole seconds, a policy that follows a script, and the record of a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from shared.policy.scaling.list_scheduling import Counts
from shared.policy.scaling.workload import UNREACHED, Stage
from treadle.lab.replay.distrs.policy import Decision, Event, OpenBatchView
from treadle.lab.replay.distrs.simulated_cluster import SimulatedCluster, _BatchSlot
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch, TracedTask

STAGES = (Stage("compile", 4.0, 12.0), Stage("run", 40.0, 12.0))


@dataclass
class ScriptedPolicy:
    """Sets its targets at given moments, whatever happens; from 0 on there is a worker of each stage."""

    script: dict[int, tuple[int, ...]]
    """Moment to workers by stage."""
    by_arrival: bool = False
    dedicated: bool = False
    knows_all: bool = False
    name: str = "scripted"
    asked: list[tuple[float, Event]] = field(default_factory=list)
    views: list[tuple[float, OpenBatchView]] = field(default_factory=list)

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:
        self.asked.append((now, event))
        self.views.extend((now, view) for view in open_batches)
        following = min((at for at in self.script if at > now), default=math.inf)
        targets = self.at(now)
        return Decision({number: targets[number % len(STAGES)] for number in range(len(busy))}, following)

    def at(self, now: float) -> tuple[int, ...]:
        return self.script[max(at for at in self.script if at <= now)]


class ExecutedStage(NamedTuple):
    """One stage of one request, as it ran."""

    pool: int
    task: int
    batch: int
    request: int
    stage: int
    ready: float
    start: float
    end: float
    key: float


class RecordingCluster(SimulatedCluster):
    """A simulated cluster that records the executions of each batch when the batch is complete."""

    def ran(self) -> list[ExecutedStage]:
        self._seen: list[ExecutedStage] = []
        self.run()
        return self._seen

    def _end(self, slot: _BatchSlot) -> None:
        for place in range(len(slot.stage)):
            visit, times = self._visits[slot.base + place], self._board.times[slot.base + place]
            start = float(times["start_s"])
            self._seen.append(
                ExecutedStage(
                    int(visit["pool"]), slot.task, slot.index, int(slot.request[place]), int(slot.stage[place]),
                    float(times["ready_s"]), start, start + float(visit["lasts_s"]), float(visit["key"]),
                )
            )  # fmt: skip
        super()._end(slot)


@st.composite
def traced_batches(draw: st.DrawFn, *, open_loop: bool | None = False) -> TracedBatch:
    """No request arrives at the start of its batch: start and arrivals are never one moment. `None`: either loop."""
    size = draw(st.integers(1, 5))
    arrivals = sorted(float(draw(st.integers(1, 15))) for _ in range(size))
    rows = np.full((len(STAGES), size), UNREACHED)
    for request in range(size):
        for stage in range(draw(st.integers(0, len(STAGES)))):
            rows[stage, request] = draw(st.integers(1, 12))
    is_open = draw(st.booleans()) if open_loop is None else open_loop
    return TracedBatch(
        np.array(arrivals),
        rows,
        start_s=float(draw(st.integers(0, 40))) if is_open else None,
        gap_s=0.0 if is_open else float(draw(st.integers(0, 10))),
    )


@st.composite
def traces(draw: st.DrawFn, *, tasks: int = 3, batches: int = 4, open_loop: bool | None = False) -> RewardTrace:
    """Each task has its history and at least one batch after it."""
    drawn = [
        TracedTask(
            f"t{number}", tuple(draw(traced_batches(open_loop=open_loop)) for _ in range(draw(st.integers(2, batches))))
        )
        for number in range(draw(st.integers(1, tasks)))
    ]
    return RewardTrace(STAGES, 3.0, tuple(drawn))


held = st.tuples(*[st.integers(1, 4)] * len(STAGES))


@st.composite
def scripts(draw: st.DrawFn) -> ScriptedPolicy:
    """In the end there is a worker of each stage, so every run ends."""
    whole = st.tuples(*[st.integers(0, 4)] * len(STAGES))
    script = {at: draw(whole) for at in draw(st.lists(st.integers(1, 60), max_size=5))}
    script |= {0: draw(whole), 61: draw(held)}
    return ScriptedPolicy(dict(sorted(script.items())), by_arrival=draw(st.booleans()), dedicated=draw(st.booleans()))
