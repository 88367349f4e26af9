"""A slow second SIMULATE, and open batches to compare with. Times are integers, so nothing is rounded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from shared.policy.order.ebf import EbfKey, EbfQueue
from shared.policy.scaling.search import UNREACHED, BatchRecord, ExpectedBatch, Requests, Stage, repeating

Visit = tuple[str, int, int]
"""Batch, request, stage."""

TIMEOUT_S = 12.0


class Oracle:
    """The same rules, written again without optimization: a list of moments and the real EBF queue."""

    def __init__(self, batches: Sequence[ExpectedBatch], units: Mapping[str, int]) -> None:
        self.batches = {batch.batch: batch for batch in batches}
        self.free = dict(units)
        self.queues: dict[str, EbfQueue[Visit]] = {pool: EbfQueue() for pool in units}
        self.running: dict[Visit, float] = {}
        self.ready: dict[Visit, float] = {}
        self.start: dict[Visit, float] = {}
        self.end: dict[Visit, float] = {}
        under_way = set[Visit]()
        for batch in batches:
            for index in range(batch.requests.size):
                first = self.following((batch.batch, index, -1))
                if first is not None:
                    self.ready[first] = float(batch.requests.ready_s[index])
                    if batch.requests.running[index]:
                        under_way.add(first)
        for visit in under_way:
            self.begin(visit, min(self.ready.values()))
        self.run({visit: ready for visit, ready in self.ready.items() if visit not in under_way})

    def following(self, visit: Visit) -> Visit | None:
        batch, index, stage = visit
        rows = self.batches[batch].requests.executions_s
        return next(((batch, index, j) for j in range(stage + 1, len(rows)) if not math.isnan(rows[j][index])), None)

    def lasts(self, visit: Visit) -> float:
        return float(self.batches[visit[0]].requests.executions_s[visit[2]][visit[1]])

    def stage(self, visit: Visit) -> Stage:
        return self.batches[visit[0]].stages[visit[2]]

    def key(self, visit: Visit) -> EbfKey:
        """No two requests share one: a stream id is its request's alone."""
        batch = self.batches[visit[0]]
        arrival = float(batch.requests.arrivals_s[visit[1]])
        serial = visit[1] * len(self.batches) + list(self.batches).index(visit[0])
        return EbfKey(batch.completion_s, 0.0, (round(arrival * 1e6), serial))

    def begin(self, visit: Visit, now: float) -> None:
        self.free[self.stage(visit).drawn_from] -= self.stage(visit).units
        self.start[visit], self.running[visit] = now, now + self.lasts(visit)

    def run(self, pending: dict[Visit, float]) -> None:
        while pending or self.running:
            now = min([*pending.values(), *self.running.values()])
            for visit in [visit for visit, end in self.running.items() if end == now]:
                del self.running[visit]
                self.end[visit] = now
                self.free[self.stage(visit).drawn_from] += self.stage(visit).units
                after = self.following(visit)
                if after is not None:
                    self.ready[after] = pending[after] = now
            for visit in sorted(visit for visit, ready in pending.items() if ready == now):
                del pending[visit]
                self.queues[self.stage(visit).drawn_from].push(self.key(visit), visit)
            for pool, queue in self.queues.items():
                while queue and self.free[pool] >= self.stage(queue.peek()[1]).units:
                    self.begin(queue.pop()[1], now)

    def delays(self) -> dict[str, float]:
        ends = {name: [end for visit, end in self.end.items() if visit[0] == name] for name in self.batches}
        stuck = {visit[0] for queue in self.queues.values() for visit in queue}
        return {
            name: math.inf if name in stuck else max(0.0, max(ends[name], default=0.0) - batch.completion_s)
            for name, batch in self.batches.items()
        }

    def feasible(self, strictness: float) -> bool:
        for visit, start in self.start.items():
            batch = self.batches[visit[0]]
            latest = start + strictness * sum(stage.timeout_s for stage in batch.stages[visit[2] :])
            if start > self.ready[visit] and latest > batch.completion_s + batch.max_extra_delay_s:
                return False
        return all(late <= self.batches[name].max_extra_delay_s for name, late in self.delays().items())

    def peak(self, pool: str) -> int:
        mine = [visit for visit in self.start if self.stage(visit).drawn_from == pool and self.lasts(visit) > 0]
        return max(
            (sum(self.stage(v).units for v in mine if self.start[v] <= self.start[at] < self.end[v]) for at in mine),
            default=0,
        )


def least(batches: Sequence[ExpectedBatch], pool: str) -> int:
    """Units kept whatever is expected: Algorithm 1 begins at one worker of every stage (line 9)."""
    stages = [stage for batch in batches if batch.requests.size for stage in batch.stages]
    return max((stage.units for stage in stages if stage.drawn_from == pool), default=0)


def cost(batches: Sequence[ExpectedBatch], units: Mapping[str, int]) -> float:
    """A unit has the cost of its pool's most expensive worker."""
    stages = [stage for batch in batches for stage in batch.stages]
    return math.fsum(
        count * max(stage.worker_cost / stage.units for stage in stages if stage.drawn_from == pool)
        for pool, count in units.items()
    )


whole = st.integers(0, 12).map(float)
strictnesses = st.sampled_from([0.0, 0.5, 1.0])
pool_units = st.fixed_dictionaries({"cpu": st.integers(2, 6), "gpu": st.integers(2, 6)})
three_pool_units = st.fixed_dictionaries({name: st.integers(1, 4) for name in ("cpu", "gpu", "io")})


@st.composite
def workflows(draw: st.DrawFn, *, units: int = 2, stages: int = 2, pools: Sequence[str]) -> tuple[Stage, ...]:
    return tuple(
        Stage(f"s{j}", draw(st.sampled_from([1.0, 4.0])), TIMEOUT_S, draw(st.sampled_from(pools)),
              draw(st.integers(1, units)))
        for j in range(draw(st.integers(1, stages)))
    )  # fmt: skip


@st.composite
def batches(draw: st.DrawFn, *, units: int = 2, stages: int = 2, most: int = 2) -> list[ExpectedBatch]:
    """Batches without an arrival."""
    drawn = []
    for number in range(draw(st.integers(1, most))):
        steps = draw(workflows(units=units, stages=stages, pools=("cpu", "gpu")))
        size = draw(st.integers(1, 6))
        reached = [draw(st.integers(1, len(steps))) for _ in range(size)]
        rows = tuple(
            tuple(float(draw(st.integers(1, 12))) if j < reached[i] else UNREACHED for i in range(size))
            for j in range(len(steps))
        )
        arrivals = tuple(draw(whole) for _ in range(size))
        record = BatchRecord(arrivals, rows)
        drawn.append(repeating(f"b{number}", steps, record, draw(whole), draw(whole)))
    return drawn


@st.composite
def amid(
    draw: st.DrawFn, *, units: int = 2, stages: int = 3, most: int = 2, shortest: int = 1, running: bool = True
) -> list[ExpectedBatch]:
    """Batches in their midst, six requests together: some are to come, some wait, some run."""
    count = draw(st.integers(1, most))
    return [
        draw(_amid(f"b{number}", 6 // count, units, stages, shortest=shortest, running=running))
        for number in range(count)
    ]


@st.composite
def _amid(
    draw: st.DrawFn, name: str, most: int, units: int, stages: int, *, shortest: int, running: bool
) -> ExpectedBatch:
    steps = draw(workflows(units=units, stages=stages, pools=("cpu", "gpu", "io")))
    size = draw(st.integers(1, most))
    arrivals, runs = np.zeros(size), np.zeros(size, bool)
    rows = np.full((len(steps), size), UNREACHED)
    for i in range(size):
        arrivals[i] = draw(st.integers(-6, 12))
        stands = draw(st.integers(0, len(steps) - 1)) if arrivals[i] <= 0 else 0
        runs[i] = running and arrivals[i] <= 0 and draw(st.booleans())
        for j in range(stands, draw(st.integers(stands + 1, len(steps)))):
            rows[j, i] = draw(st.integers(shortest, 12))
    requests = Requests(arrivals, np.maximum(arrivals, 0.0), rows, runs)
    return ExpectedBatch(name, steps, requests, draw(whole), max(requests.completion_s, 0.0))
