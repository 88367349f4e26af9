"""SIMULATE of DistRS (§5.1 Algorithm 1, §5.2): the outcome of expected batches on a number of units.

Virtual list scheduling (`simulation_kernel`). Each stage of a request draws units from one pool; stages may share a
pool. Whenever units are free, the first waiting request in EBF order takes them (with one batch that is FCFS by
arrival). Running work keeps its units to its end, even if the pool has fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from shared.policy.scaling.list_scheduling import TOLERANCE_S, Floats
from shared.policy.scaling.quota_supply import UNLIMITED, Supply
from shared.policy.scaling.simulation_input import ScheduleInput, SimulationInput, peak
from shared.policy.scaling.simulation_kernel import run_to_end, run_with_quotas
from shared.policy.scaling.workload import ExpectedBatch


class Violation(NamedTuple):
    """Reason why an allocation is not enough: the first request that queues too long."""

    batch: str
    stage: str
    rule: Literal["delay", "timeout"]
    """`delay`: the batch is late by its expected times; `timeout`: it would be if the request lasted its timeouts."""
    late_s: float
    """Seconds beyond T + D."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of an allocation."""

    violation: Violation | None
    extra_delay_s: Mapping[str, float]
    """d by batch; infinite if a stage can never run."""
    peak_units: Mapping[str, int]
    """Most units in use at once, by pool."""
    peak_workers: Mapping[tuple[str, str], int]
    """Most requests executing at once by (batch, stage): the N_j of Algorithm 1 that were used."""
    blamed: Mapping[str, str]
    """Late batch -> stage for which its last request waits longest."""

    @property
    def feasible(self) -> bool:
        return self.violation is None


def simulate(
    batches: Sequence[ExpectedBatch],
    units: Mapping[str, int],
    *,
    strictness: float = 1.0,
    supply: Supply = UNLIMITED,
) -> Outcome:
    """Run batches on a number of units and return the outcome (SIMULATE, to its end).

    Args:
        batches: open together; their times are on one clock.
        units: by pool; a pool that is not named has none.
        strictness: of the timeout-aware rule. A request that has to wait at stage k until ts breaks it if ts +
        strictness * (T_k + ... + T_M) > T + D. 1 is the paper's; with 0 only the expected times decide.
        supply: quotas at the beginning of that clock. The time for which they alone would hold a request is no wait.

    Raises:
        ValueError: the requests do not have one row of times for each stage.
    """
    inputs = SimulationInput(batches, strictness, supply)
    return outcome(inputs, schedule(inputs.complete, [units.get(pool, 0) for pool in inputs.pools]))


class Schedule(NamedTuple):
    """Result of list scheduling."""

    starts_s: Floats
    """By visit; infinite if it never starts."""
    used: Sequence[int]
    """Most units in use at once, by pool."""
    slack_s: float
    """Least time left to the limit when a visit that had to wait starts; infinite if none had to. Below zero: not
    feasible."""


def schedule(source: ScheduleInput, capacity: Sequence[int]) -> Schedule:
    """Run the whole schedule, also if it breaks limits. About 0.1 us a visit."""
    return _run(source, capacity, math.inf)


def feasible_schedule(source: ScheduleInput, capacity: Sequence[int]) -> Schedule | None:
    """Run the schedule; return None as soon as a visit has waited too long, or if one never starts."""
    found = _run(source, capacity, 0.0)
    return found if found.slack_s >= 0 else None


def _run(source: ScheduleInput, capacity: Sequence[int], enough_s: float) -> Schedule:
    coming, owned = source[1:5], np.array(capacity, np.int64)
    if source.claims is None:
        starts, used, slack = run_to_end(source.visits, coming, owned, enough_s)
    else:
        starts, used, slack, _ = run_with_quotas(source.visits, coming, source.claims.columns, owned, enough_s)
    return Schedule(starts, used.tolist(), slack)


def outcome(inputs: SimulationInput, found: Schedule) -> Outcome:
    """Derive the outcome of the batches from a schedule."""
    visits, starts = inputs.visits, found.starts_s
    ends = starts + visits["lasts_s"]
    delays: dict[str, float] = {}
    workers: dict[tuple[str, str], int] = {}
    blamed: dict[str, str] = {}
    for number, batch in enumerate(inputs.batches):
        mine = visits["owner"] == number
        late = float(ends[mine].max(initial=-math.inf)) - batch.completion_s
        delays[batch.batch] = late if late > TOLERANCE_S else 0.0
        if late > TOLERANCE_S:
            last = int(np.argmax(np.where(mine, ends, -math.inf)))
            blamed[batch.batch] = batch.stages[_longest_wait(inputs, starts, last)].name
        for place, step in enumerate(batch.stages):
            chosen = mine & (inputs.stage == place)
            workers[batch.batch, step.name] = peak(starts[chosen], ends[chosen])
    used = dict(zip(inputs.pools, map(int, found.used), strict=True))
    return Outcome(_first_violation(inputs, starts), delays, used, workers, blamed)


def _longest_wait(inputs: SimulationInput, starts: Floats, last: int) -> int:
    """Stage for which the request of a visit waits longest up to it; a stage that never starts counts as longest. The
    time for which quotas alone would hold it does not count.
    """
    first = last
    while first and not inputs.visits["final"][first - 1]:
        first -= 1
    path = slice(first, last + 1)
    ready = inputs.earliest_s[path].copy()
    ready[1:] = (starts[path] + inputs.visits["lasts_s"][path])[:-1]
    if inputs.unlimited is not None:
        ready = np.maximum(ready, inputs.unlimited.starts_s[path])
    waits = np.where(np.isinf(starts[path]), math.inf, starts[path]) - np.where(np.isinf(ready), 0.0, ready)
    return int(inputs.stage[first + int(np.argmax(waits))])


def _first_violation(inputs: SimulationInput, starts: Floats) -> Violation | None:
    visits = inputs.visits
    ends = starts + visits["lasts_s"]
    ready = inputs.earliest_s.copy()
    follows = np.flatnonzero(visits["final"][:-1] == 0) + 1
    ready[follows] = ends[follows - 1]
    broken = np.flatnonzero((starts > visits["limit_s"]) & ~(starts <= ready + TOLERANCE_S))
    if not len(broken):
        return None
    first = int(broken[np.argmin(starts[broken])])
    batch = inputs.batches[visits["owner"][first]]
    last = first + int(np.argmax(visits["final"][first:]))
    latest = batch.completion_s + batch.max_extra_delay_s
    by_times = float(starts[first]) + math.fsum(visits["lasts_s"][first : last + 1]) - latest
    name = batch.stages[inputs.stage[first]].name
    if by_times > TOLERANCE_S:
        return Violation(batch.batch, name, "delay", by_times)
    return Violation(batch.batch, name, "timeout", float(starts[first] - visits["limit_s"][first]) + TOLERANCE_S)
