"""A cluster in virtual time: training tasks in a closed loop, pools that grow and shrink, requests in EBF order.

The list scheduling of SIMULATE (`list_scheduling`) runs here over the actual requests. The policy decides targets at a
batch's opening (the hint), at its first arrival, at its completion, and at the times that it requests. New units are
usable a cold start later; a smaller target does not end running work (`pools`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from shared.policy.scaling.collection import CollectionInput
from shared.policy.scaling.list_scheduling import (
    COMPLETE,
    SERVED,
    VISIT,
    Counts,
    Flags,
    Floats,
    advance,
    schedule_state,
)
from shared.policy.scaling.workload import BatchRecord, Requests
from treadle.lab.replay.distrs.policy import Event, OpenBatchView, Policy, RolloutReport
from treadle.lab.replay.distrs.pools import Pools
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch

MAX_REVIEWS = 100_000
"""Most timer events in a row while a batch is open and no batch event occurs: a day, with one each second."""
_WARMED = "warmed"
"""Event: the units of a pool have become usable. The policy does not decide."""


@dataclass(frozen=True)
class CompletedBatch:
    """A complete batch."""

    task: int
    index: int
    extra_delay_s: float
    """d: delay beyond its earliest possible completion."""
    opened_s: float
    complete_s: float


@dataclass
class RunCosts:
    """Costs and delays of a run."""

    unit_s: Floats
    """By pool: unit-seconds held."""
    busy_s: Floats
    """By stage: unit-seconds executed."""
    done: list[CompletedBatch] = field(default_factory=list)
    held: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    """(moment, targets by pool) at each change."""


@dataclass
class _BatchSlot:
    """Slot of one open batch: its visits begin at index `base`."""

    number: int
    base: int
    task: int = 0
    batch: TracedBatch | None = None
    index: int = 0
    opened_s: float = 0.0
    stage: Counts = field(default_factory=lambda: np.empty(0, np.int64))
    """By visit."""
    request: Counts = field(default_factory=lambda: np.empty(0, np.int64))
    """By visit."""
    before_s: Floats = field(default_factory=lambda: np.empty(0))
    """By visit: seconds of the stages before it."""
    arrivals_s: Floats = field(default_factory=lambda: np.empty(0))
    """Absolute."""


class SimulatedCluster:
    """One run of a trace under a policy.

    The first batch of each task is its history and is not run, because no policy can plan without history. It is
    complete at its start, so tasks that start apart stay apart.

    Args:
        trace: of the workload.
        policy: decides the numbers of workers.
    """

    def __init__(self, trace: RewardTrace, policy: Policy) -> None:
        self._trace, self._policy = trace, policy
        self._stages = len(trace.stages)
        sets = len(trace.tasks) if policy.dedicated else 1
        pools = self._stages * sets
        overlapping = any(batch.start_s is not None for task in trace.tasks for batch in task.batches)
        slots = sum(len(task.batches) for task in trace.tasks) if overlapping else len(trace.tasks)
        room = self._stages * max((batch.size for task in trace.tasks for batch in task.batches), default=1)
        self._visits = np.zeros(slots * room, VISIT)
        self._visits["limit_s"], self._visits["units"] = np.inf, 1
        self._board = schedule_state(slots, slots * room, np.zeros(pools, np.int64))
        self._board.now_s[0] = 0.0
        self._free = [_BatchSlot(number, number * room) for number in range(slots)]
        self._open: list[_BatchSlot] = []
        self._arrivals_s, self._firsts = np.empty(0), np.empty(0, np.int64)
        self._events: list[tuple[float, int, Event, _BatchSlot | int]] = []
        self._serials = count()
        self._wake_s = math.inf
        self._reviews = 0
        self._pools = Pools(self._board.free, trace.cold_starts_s * sets)
        self._records = [[record_of(task.batches[0])] for task in trace.tasks]
        self._gaps = [[float(task.batches[0].arrivals_s[0])] for task in trace.tasks]
        self.costs = RunCosts(self._pools.unit_s, np.zeros(self._stages))

    def run(self) -> RunCosts:
        """Run from time 0 until the last batch is complete."""
        for task, traced in enumerate(self._trace.tasks):
            for index, batch in enumerate(traced.batches[1:], 1):
                if batch.start_s is not None:
                    self._push(batch.start_s, f"start {index}", task)
            self._follow(task, 0, traced.batches[0].start_s or traced.batches[0].gap_s)
        coming = sum(len(traced.batches) - 1 for traced in self._trace.tasks)
        while len(self.costs.done) < coming:
            until = self._events[0][0] if self._events else math.inf
            code = advance(
                self._visits, self._board, self._arrivals_s, self._firsts, until_s=until, stop_at_complete=True
            )
            if code == COMPLETE:
                for slot in [slot for slot in self._open if math.isfinite(self._board.complete_s[slot.number])]:
                    self._board.complete_s[slot.number] = np.inf
                    self._push(max(self._now, float(slot.arrivals_s[-1])), "complete", slot)
                continue
            if not self._events:
                raise RuntimeError(f"{self._policy.name} holds no worker for waiting requests and requests no review")
            self._handle(*heapq.heappop(self._events)[2:])
        self._pools.account(self._now)
        self.costs.unit_s += self._board.over_unit_s
        return self.costs

    @property
    def _now(self) -> float:
        return float(self._board.now_s[0])

    def _push(self, at: float, event: Event, subject: _BatchSlot | int) -> None:
        heapq.heappush(self._events, (at, next(self._serials), event, subject))

    def _follow(self, task: int, index: int, over_s: float) -> None:
        """Schedule the start of the task's next batch, its gap after `over_s`, unless it has a start of its own."""
        batches = self._trace.tasks[task].batches
        if index + 1 < len(batches) and batches[index + 1].start_s is None:
            self._push(over_s + batches[index + 1].gap_s, f"start {index + 1}", task)

    def _handle(self, event: Event, subject: _BatchSlot | int) -> None:
        if isinstance(subject, int):
            if event == _WARMED:
                self._pools.warmed(self._now, subject)
                return
            if event != "timer":
                self._begin(subject, int(event.split()[1]))
                event = "opened"
            elif self._now != self._wake_s:
                return  # replaced by a later request
        elif event == "complete":
            self._end(subject)
        self._decide(event)

    def _begin(self, task: int, index: int) -> None:
        slot, batch = self._free.pop(), self._trace.tasks[task].batches[index]
        slot.task, slot.index, slot.batch, slot.opened_s = task, index, batch, self._now
        slot.arrivals_s = slot.opened_s + batch.arrivals_s
        reached = ~np.isnan(batch.executions_s.T)
        slot.request, slot.stage = np.nonzero(reached)
        took = np.nan_to_num(batch.executions_s.T)
        slot.before_s = (np.cumsum(took, axis=1) - took)[reached]
        some = reached.any(axis=1)
        firsts = slot.base + (np.cumsum(reached.sum(axis=1)) - reached.sum(axis=1))[some]
        place = slice(slot.base, slot.base + len(slot.stage))
        visits = self._visits[place]
        visits["lasts_s"] = batch.executions_s.T[reached]
        visits["pool"] = slot.stage + (task * self._stages if self._policy.dedicated else 0)
        visits["owner"] = slot.number
        visits["final"] = np.append(slot.request[1:] != slot.request[:-1], True)[: len(visits)]
        visits["key"] = slot.arrivals_s[slot.request] if self._policy.by_arrival else self._due(slot)
        self._board.times[place] = (np.inf, np.inf)
        self._board.left[slot.number] = len(firsts)
        self._let_come(slot.arrivals_s[some], firsts)
        self._open.append(slot)
        self.costs.busy_s += np.nansum(batch.executions_s, axis=1)
        self._push(float(slot.arrivals_s[0]), "arrived", slot)
        if not len(firsts):
            self._push(float(slot.arrivals_s[-1]), "complete", slot)

    def _due(self, slot: _BatchSlot) -> float:
        """Return T as the dispatcher would expect it at the first arrival; the actual T for an ideal policy."""
        assert slot.batch is not None
        if self._policy.knows_all:
            return slot.opened_s + slot.batch.ideal_span_s
        return float(slot.arrivals_s[0]) + self._records[slot.task][-1].span_s

    def _let_come(self, arrivals_s: Floats, firsts: Counts) -> None:
        served = self._board.progress[SERVED]
        coming = np.concatenate([self._arrivals_s[served:], arrivals_s])
        order = np.argsort(coming, kind="stable")
        self._arrivals_s, self._firsts = coming[order], np.concatenate([self._firsts[served:], firsts])[order]
        self._board.progress[SERVED] = 0

    def _end(self, slot: _BatchSlot) -> None:
        assert slot.batch is not None
        late = self._now - (slot.opened_s + slot.batch.ideal_span_s)
        self.costs.done.append(CompletedBatch(slot.task, slot.index, max(0.0, late), slot.opened_s, self._now))
        self._records[slot.task].append(record_of(slot.batch))
        self._gaps[slot.task].append(float(slot.batch.arrivals_s[0]))
        self._open.remove(slot)
        self._free.append(slot)
        self._follow(slot.task, slot.index, self._now)

    # ---- policy ------------------------------------------------------------------------------------------------------

    def _decide(self, event: Event) -> None:
        """Let the policy decide.

        Raises:
            RuntimeError: it requests timer events without end while a batch waits.
        """
        self._reviews = self._reviews + 1 if event == "timer" and self._open else 0
        if self._reviews > MAX_REVIEWS:
            raise RuntimeError(
                f"{self._policy.name} holds no worker for waiting requests after {MAX_REVIEWS:,} reviews"
            )
        views = [self._view(slot) for slot in self._open]
        decision = self._policy.decide(self._now, event, views, self._pools.busy)
        if decision.wake_s < math.inf and decision.wake_s != self._wake_s:
            self._push(decision.wake_s, "timer", 0)
        self._wake_s = decision.wake_s
        self._rekey(decision.due_s)
        self._pools.account(self._now)
        for pool, units in decision.targets.items():
            usable_s = self._pools.set(self._now, pool, units)
            if usable_s < math.inf:
                self._push(usable_s, _WARMED, pool)
        self.costs.held.append((self._now, tuple(int(units) for units in self._pools.targets)))

    def _rekey(self, due_s: Mapping[tuple[int, int], float]) -> None:
        """Apply new keys to waiting and future visits."""
        moved = [slot for slot in self._open if (slot.task, slot.index) in due_s and not self._policy.by_arrival]
        for slot in moved:
            self._visits["key"][slot.base : slot.base + len(slot.stage)] = due_s[slot.task, slot.index]
        for pool, waiting in enumerate(self._board.waiting) if moved else ():
            queue = self._board.queues[pool, :waiting]
            queue["key"] = self._visits["key"][queue["visit"]]
            queue[:] = queue[np.lexsort((queue["visit"], queue["key"]))]  # a sorted array is a heap

    def _view(self, slot: _BatchSlot) -> OpenBatchView:
        assert slot.batch is not None
        now, place = self._now, slice(slot.base, slot.base + len(slot.stage))
        ready, starts = self._board.times["ready_s"][place], self._board.times["start_s"][place]
        runs = starts + self._visits["lasts_s"][place] > now
        runs &= np.isfinite(starts)
        waits = np.isfinite(ready) & ~np.isfinite(starts)
        came = slot.arrivals_s[slot.request]
        unqueued = slot.arrivals_s[slot.request] + slot.before_s
        answered = np.isfinite(starts) & ~runs & (self._visits["final"][place] == 1)
        unqueued_ends = (unqueued + self._visits["lasts_s"][place])[answered]
        arrived = int(np.searchsorted(slot.arrivals_s, now, side="right"))
        seen = CollectionInput(
            size=slot.batch.size,
            opened_s=slot.opened_s,
            first_arrival_s=float(slot.arrivals_s[0]) if arrived else None,
            arrived=arrived,
            queuing=[
                np.column_stack([came[mine], unqueued[mine]])
                for mine in (waits & (slot.stage == stage) for stage in range(self._stages))
            ],
            running=[
                np.column_stack([came[mine], unqueued[mine], starts[mine]])
                for mine in (runs & (slot.stage == stage) for stage in range(self._stages))
            ],
            unqueued_end_s=float(unqueued_ends.max()) if len(unqueued_ends) else None,
        )
        truth = self._truth(slot, runs, np.isfinite(starts) & ~runs) if self._policy.knows_all else None
        report, past = self._report(slot, arrived), self._records[slot.task]
        return OpenBatchView(slot.task, slot.index, seen, report, past, self._gaps[slot.task], truth)

    def _truth(self, slot: _BatchSlot, runs: Flags, gone: Flags) -> Requests:
        assert slot.batch is not None
        executions = slot.batch.executions_s.copy()
        executions[slot.stage[gone], slot.request[gone]] = np.nan
        place = slice(slot.base, slot.base + len(slot.stage))
        ends = self._board.times["start_s"][place] + self._visits["lasts_s"][place]
        executions[slot.stage[runs], slot.request[runs]] = ends[runs] - self._now
        running = np.zeros(slot.batch.size, bool)
        running[slot.request[runs]] = True
        coming = np.maximum(slot.arrivals_s - self._now, 0.0)
        left = ~np.isnan(executions).all(axis=0) | (coming > 0)
        return Requests((slot.arrivals_s - self._now)[left], coming[left], executions[:, left], running[left])

    def _report(self, slot: _BatchSlot, arrived: int) -> RolloutReport | None:
        """Return the progress. The tokens of a sample are spread evenly from the rollout's beginning to its arrival."""
        assert slot.batch is not None
        if slot.batch.lengths is None or arrived == slot.batch.size:
            return None
        lengths, arrivals = slot.batch.lengths[arrived:], slot.batch.arrivals_s[arrived:]
        known = (lengths > 0) & (arrivals > 0)
        so_far = lengths[known] * (self._now - slot.opened_s) / arrivals[known]
        return RolloutReport(slot.batch.size - arrived, float(np.median(so_far)) if known.any() else None)


def record_of(batch: TracedBatch) -> BatchRecord:
    """Return a traced batch as the store would record it."""
    arrivals = batch.arrivals_s - batch.arrivals_s[0]
    return BatchRecord(tuple(arrivals.tolist()), tuple(tuple(row) for row in batch.executions_s.tolist()))
