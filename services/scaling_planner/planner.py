"""What the planner decides: batches and capacities in, targets out. Pure; its shell has the sockets (service.py).

At each opening and completion Algorithm 1 runs over what the last batch of each task did, all open batches together,
in EBF order, from their first arrivals on. A task without history asks for every unit (zero queue); without an open
batch a pool falls back to its floor. A batch under way is simulated whole, as if its past could still need units: the
cautious side of Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.scaling_planner import reasons
from services.scaling_planner.reasons import Reason
from shared.policy.ebf import expected_completion
from shared.policy.scaling import BatchRecord, ExpectedBatch, Plan, Stage, search, simulate
from shared.store.records import LastBatch, OpenedBatch
from shared.units import Seconds


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """Command: the pool shall hold so many units."""

    pool: str
    previous: int | None
    units: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class ExpectCompletion:
    """Command: tell the dispatcher T of a batch, its EBF key."""

    batch: str
    at: Seconds
    """Unix seconds."""


Command = PublishTarget | ExpectCompletion


@dataclass(slots=True)
class _Open:
    batch: OpenedBatch
    record: BatchRecord | None = None
    """Of the task's last batch; None without history."""
    gap_s: Seconds = 0.0
    """From hint to first arrival, last time."""


@dataclass(slots=True)
class Planner:
    """Open batches, what their tasks did last, what pools can hold. Memory is bounded by the open batches."""

    strictness: float = 1.0
    floors: Mapping[str, int] = field(default_factory=dict)
    ceilings: Mapping[str, int] = field(default_factory=dict)
    """Set by hand; a pool holds no more than its nodes have anyway."""
    targets: dict[str, int] = field(default_factory=dict)
    """As decided last, by pool; the shell restores it."""
    _open: dict[str, _Open] = field(default_factory=dict)
    _capacity: dict[str, int] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    """Pools of which this process has published a target."""

    def restored(self, batch: OpenedBatch, last: LastBatch | None) -> None:
        """A batch that was open before this process began. Decides nothing: capacities are not known yet."""
        self._open[batch.batch] = _expect(_Open(batch), last)

    def opened(self, now: Seconds, batch: OpenedBatch, last: LastBatch | None) -> list[Command]:
        """A rollout has begun; `last` is the newest complete batch of its task."""
        self.restored(batch, last)
        return self._decide(now, f"batch {batch.batch} opened", batch.stages)

    def first_arrival(self, now: Seconds, batch: str, at: Seconds) -> list[Command]:
        """A batch's first request has come: T is known where there is history, and how open batches overlap."""
        known = self._open.get(batch)
        if known is None:
            return []
        known.batch = replace(known.batch, first_arrival_at=at)
        commands: list[Command] = []
        if known.record is not None:
            timeouts = [stage.timeout_s for stage in known.batch.stages]
            commands.append(ExpectCompletion(batch, expected_completion(at, timeouts, known.record.span_s)))
        if len(self._open) > 1:
            commands += self._decide(now, f"first request of batch {batch} came", known.batch.stages)
        return commands

    def ended(self, now: Seconds, batch: str, last: LastBatch | None) -> list[Command]:
        """A batch has ended; `last` is it where it may be learnt from, else None."""
        if last is not None:
            for other in self._open.values():
                if (other.batch.tenant, other.batch.task) == (last.opened.tenant, last.opened.task):
                    _expect(other, last)
        gone = self._open.pop(batch, None)
        return [] if gone is None else self._decide(now, f"batch {batch} ended", gone.batch.stages)

    def capacities(self, now: Seconds, by_pool: Mapping[str, int]) -> list[Command]:
        """Nodes have come or gone: units that exist, of every pool."""
        if dict(by_pool) == self._capacity:
            return []
        self._capacity = dict(by_pool)
        return self._decide(now, "nodes have come or gone", ())

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for pool in self._said & self._capacity.keys():
            assert self._floor(pool) <= self.targets[pool] <= self._ceiling(pool), f"target of {pool} out of bounds"
            if not any(stage.drawn_from == pool for known in self._open.values() for stage in known.batch.stages):
                assert self.targets[pool] == self._floor(pool), f"{pool} is idle and not at its floor"

    def _ceiling(self, pool: str) -> int:
        has = self._capacity.get(pool, 0)
        return min(has, self.ceilings.get(pool, has))

    def _floor(self, pool: str) -> int:
        return min(self.floors.get(pool, 0), self._ceiling(pool))

    def _decide(self, now: Seconds, event: str, stages: Sequence[Stage]) -> list[Command]:
        """Targets of all pools: said where they change, where `stages` draw from, and once for each pool."""
        concerned = {stage.drawn_from for stage in stages}
        batches = self._expected(now)
        plan = search(batches, {p: self._ceiling(p) for p in self._capacity}, strictness=self.strictness)
        commands: list[Command] = []
        for pool in sorted(self._capacity):
            units = self._units(pool, plan)
            previous = self.targets.get(pool)
            if units == previous and pool in self._said and pool not in concerned:
                continue
            self.targets[pool] = units
            self._said.add(pool)
            commands.append(PublishTarget(pool, previous, units, self._reason(pool, event, batches, plan)))
        return commands

    def _units(self, pool: str, plan: Plan) -> int:
        if self._unknown(pool):
            return self._ceiling(pool)
        return max(plan.units.get(pool, 0), self._floor(pool))

    def _reason(self, pool: str, event: str, batches: Sequence[ExpectedBatch], plan: Plan) -> Reason:
        ceiling, floor = self._ceiling(pool), self._floor(pool)
        if unknown := self._unknown(pool):
            return reasons.no_history(pool, event, unknown, ceiling, floor)
        if pool not in plan.units:
            return reasons.idle(event, ceiling, floor)
        if not plan.outcome.feasible:
            return reasons.not_enough(pool, event, batches, plan.outcome, ceiling, floor)
        units = plan.units[pool]
        fewer = simulate(batches, {**plan.units, pool: units - 1}, strictness=self.strictness) if units else None
        return reasons.searched(pool, event, batches, units, plan.outcome, fewer, ceiling, floor)

    def _unknown(self, pool: str) -> list[str]:
        """Tasks without history whose open batches draw from the pool."""
        return sorted(
            {
                known.batch.task
                for known in self._open.values()
                if known.record is None and any(stage.drawn_from == pool for stage in known.batch.stages)
            }
        )

    def _expected(self, now: Seconds) -> list[ExpectedBatch]:
        """Open batches with history. Their clock begins now: Unix seconds would cost it the microseconds."""
        return [
            ExpectedBatch(
                known.batch.batch,
                known.batch.stages,
                known.record,
                known.batch.max_extra_delay_s,
                (known.batch.first_arrival_at or max(now, known.batch.opened_at + known.gap_s)) - now,
            )
            for known in self._open.values()
            if known.record is not None
        ]


def _expect(known: _Open, last: LastBatch | None) -> _Open:
    """Let an open batch be expected to do what `last` did, unless it is other work: then there is no history yet."""
    known.record, known.gap_s = None, 0.0
    if last is not None and _same_work(known.batch, last.opened):
        known.record = last.requests.record(len(known.batch.stages))
        first = last.opened.first_arrival_at
        known.gap_s = max(0.0, first - last.opened.opened_at) if first is not None else 0.0
    return known


def _same_work(batch: OpenedBatch, last: OpenedBatch) -> bool:
    """A change of the batch size or of the workflow starts anew; a change of prices does not."""

    def work(stages: Sequence[Stage]) -> list[Stage]:
        return [replace(stage, worker_cost=0.0) for stage in stages]

    return batch.size == last.size and work(batch.stages) == work(last.stages)
