"""The planner's decisions: stimulus in, targets out (DistRS §5). The service and the replay run this same object.

It decides when a batch's first request arrives or is expected soon, when a batch ends, when nodes join or leave, when
requests wait that were expected later, and every `review_s` while batches are open. Algorithm 2 collects the remaining
work (collection.py), Algorithm 1 searches for the fewest units (search.py), and the part needed before the next review
is held (lookahead.py, steady.py). A task without history requests enough units for a zero queue; without an open batch
a pool returns to its floor.

Between the opening hint and the first arrival, a batch requests no units until its pools have to be warmed up. That is
one cold start before the earliest expected first request, by recent batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from shared.policy.scaling import reasons
from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.lookahead import needed_within
from shared.policy.scaling.open_batch import OpenBatchState
from shared.policy.scaling.reasons import Reason
from shared.policy.scaling.relaxing import Relaxed, search_relaxed
from shared.policy.scaling.search import ExpectedBatch, Plan, Stage, simulate
from shared.policy.scaling.steady import Steady
from shared.policy.scaling.stimuli import (
    Command,
    Ended,
    ExpectCompletion,
    FirstCame,
    Looked,
    NodesChanged,
    Opened,
    Progressed,
    PublishTarget,
    Restored,
    Stimulus,
    Woken,
)
from shared.policy.scaling.wishes import Wish, wished
from shared.policy.scaling.workload import OpenedBatch


@dataclass(slots=True)
class Planner:
    """Open batches, the histories of their tasks, and the capacities of pools. Memory is bounded by the open
    batches.
    """

    ways: PlannerConfig = field(default_factory=PlannerConfig)
    floors: Mapping[str, int] = field(default_factory=dict)
    ceilings: Mapping[str, int] = field(default_factory=dict)
    """Configured limits; a pool never holds more than its nodes have."""
    seed: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    """Last decided target of each pool."""
    _random: Random = field(init=False)
    _open: dict[str, OpenBatchState] = field(default_factory=dict)
    _capacity: dict[str, int] = field(default_factory=dict)
    _cold_start_s: dict[str, float] = field(default_factory=dict)
    _steady: dict[str, Steady] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    """Pools of which this process has published a target."""
    _decided_s: float = -math.inf
    _planned: Mapping[str, int] = field(default_factory=dict)
    """Units that the last search found, plus those for tasks without history."""
    _found: Mapping[str, int] = field(default_factory=dict)
    """Units that the last search found."""
    _strictness: float = 0.0
    """Strictness of that search."""
    _overdue: Mapping[str, int] = field(default_factory=dict)
    """By pool, at the last decision: requests that waited beyond their latest start."""

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def handle(self, now: float, stimulus: Stimulus) -> list[Command]:
        """Handle one stimulus; time never decreases."""
        match stimulus:
            case Opened():
                return self._opened(now, stimulus)
            case FirstCame():
                return self._first_came(now, stimulus)
            case Progressed():
                known = self._open.get(stimulus.batch)
                if known is not None and self.ways.progress:
                    known.report(stimulus)
                return []
            case Ended():
                return self._ended(now, stimulus)
            case Looked():
                return self._looked(now, stimulus)
            case NodesChanged():
                self._cold_start_s = dict(stimulus.cold_start_s)
                if stimulus.units == self._capacity:
                    return []
                self._capacity = dict(stimulus.units)
                return self._decide(now, "nodes have come or gone", ())
            case Restored():
                self.targets = dict(stimulus.targets)
                return []
            case Woken():
                return self._decide(now, "review", ()) if now >= self.wake_s() else []

    def wake_s(self) -> float:
        """Time of the next review or change without a stimulus; infinite: never."""
        active = any(self._wants(one, self._decided_s) for one in self._open.values())
        moments = [self._decided_s + self.ways.review_s] if active else []
        moments += [self._warm_s(one) for one in self._open.values() if not self._wants(one, self._decided_s)]
        moments += [steady.falls_at(self._hold_s(pool)) for pool, steady in self._steady.items()]
        return min(moments, default=math.inf)

    def look_s(self, now: float) -> float:
        """Time of the next snapshot without a stimulus, because requests may wait unexpectedly. Infinite: never."""
        if any(self.targets.get(pool, units) < units for pool, units in self._planned.items()):
            return now + self.ways.surprise_s
        latest_s = [
            at
            for known in self._open.values()
            for stage, at in zip(known.batch.stages, known.latest_starts_s(self._strictness), strict=True)
            if self._may_grow(stage.drawn_from)
        ]
        return max(now + self.ways.surprise_s, min(latest_s, default=math.inf))

    @property
    def open_batches(self) -> list[str]:
        """Names of the open batches."""
        return list(self._open)

    def would_learn(self, ended: OpenedBatch) -> bool:
        """Return whether another batch of the same work is open, so that the history of the ended batch applies to
        it.
        """
        return any(one.batch.batch != ended.batch and one.batch.same_work(ended) for one in self._open.values())

    def expectations(self, now: float) -> list[ExpectedBatch]:
        """Expected remaining work of open batches with history, of those that want units; drawn again at each call."""
        wanting = [known for known in self._open.values() if self._wants(known, now)]
        return [
            known.expected(now, self._random, paced=self.ways.paced) for known in wanting if known.history is not None
        ]

    def tokens_per_s(self, batch: str) -> float | None:
        """Token rate of a batch's rollout, as last reported."""
        known = self._open.get(batch)
        return None if known is None else known.tokens_per_s

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for pool in self._said & self._capacity.keys():
            assert self._floor(pool) <= self.targets[pool] <= self._ceiling(pool), f"target of {pool} out of bounds"
            if not any(known.draws_from(pool) for known in self._open.values()):
                falls = self._steady[pool].falls_at(self._hold_s(pool))
                assert self.targets[pool] == self._floor(pool) or falls < math.inf, f"{pool} is idle above its floor"

    # ---- stimuli ---------------------------------------------------------------------------------------------------

    def _opened(self, now: float, stimulus: Opened) -> list[Command]:
        batch = stimulus.batch
        known = self._open.get(batch.batch)
        if known is None:
            known = self._open[batch.batch] = OpenBatchState(batch)
        known.learn(stimulus.past, self.ways.window)  # after a repeated delivery, newer information is kept
        if stimulus.restored or not self._wants(known, now):
            return []
        return self._decide(now, f"batch {batch.batch} opened", batch.stages)

    def _first_came(self, now: float, stimulus: FirstCame) -> list[Command]:
        """Decide again: now T (with history) and the overlap of open batches are known."""
        known = self._open.get(stimulus.batch)
        if known is None:
            return []
        known.batch = replace(known.batch, first_arrival_at=stimulus.at)
        return self._decide(now, f"first request of batch {stimulus.batch} came", ())

    def _looked(self, now: float, stimulus: Looked) -> list[Command]:
        for batch, sight in stimulus.batches.items():
            if batch in self._open:
                self._open[batch].sight = sight
        if now < self._decided_s + self.ways.surprise_s:
            return []
        waited_for = {
            stage.drawn_from
            for batch in stimulus.batches.keys() & self._open.keys()
            for stage, waits in zip(self._open[batch].batch.stages, stimulus.batches[batch].queuing, strict=False)
            if waits
        }
        early = {pool for pool in waited_for if self.targets.get(pool, 0) < self._planned.get(pool, 0)}
        early |= {pool for pool, count in self._all_overdue(now).items() if count > self._overdue.get(pool, 0)}
        return self._decide(now, f"requests wait for {', '.join(sorted(early))}", ()) if early else []

    def _ended(self, now: float, stimulus: Ended) -> list[Command]:
        gone = self._open.pop(stimulus.batch, None)
        ended = stimulus.past[-1].opened if stimulus.past else None
        for other in self._open.values():
            if ended is not None and other.batch.same_work(ended):
                other.learn(stimulus.past, self.ways.window)
        return [] if gone is None else self._decide(now, f"batch {stimulus.batch} ended", gone.batch.stages)

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _decide(self, now: float, event: str, stages: Sequence[Stage]) -> list[Command]:
        """Decide the targets of all pools. A target is published if it changes, if `stages` draw from the pool, or if
        it is the pool's first.
        """
        concerned = {stage.drawn_from for stage in stages}
        self._decided_s = now
        wanting = [known for known in self._open.values() if self._wants(known, now)]
        commands, batches = self._expected(now, wanting)
        ways, ceilings = self.ways, {pool: self._ceiling(pool) for pool in self._capacity}
        near = self._found if math.isfinite(ways.review_s) else None
        found = search_relaxed(batches, ceilings, strictness=ways.strictness, trade=ways.trade, near=near)
        self._found, self._strictness = found.plan.units, found.strictness
        self._overdue = self._all_overdue(now)
        soon = self._soon(found.plan)
        wishes = {pool: wished(pool, wanting, found.plan, soon, ceilings[pool]) for pool in sorted(self._capacity)}
        self._planned = {pool: wish.planned + wish.unknown for pool, wish in wishes.items()}
        for pool, wish in wishes.items():
            wanted = min(self._ceiling(pool), max(wish.wanted, self._floor(pool)))
            units, previous = self._steadied(now, pool, wanted), self.targets.get(pool)
            if units == previous and pool in self._said and pool not in concerned:
                continue
            self.targets[pool] = units
            self._said.add(pool)
            reason = self._reason(pool, event, wish, found).with_held(units, wish.planned, wish.soon)
            commands.append(PublishTarget(pool, previous, units, reason))
        return commands

    def _expected(self, now: float, wanting: Sequence[OpenBatchState]) -> tuple[list[Command], list[ExpectedBatch]]:
        """Expectations of the batches with history, in the dispatcher's order, and commands for each T that has
        changed.
        """
        commands: list[Command] = []
        batches = []
        for known in (known for known in wanting if known.history is not None):
            expected = known.expected(now, self._random, paced=self.ways.paced)
            moved_s = known.move(now, expected)
            if moved_s is not None:
                commands.append(ExpectCompletion(known.batch.batch, moved_s))
            batches.append(expected if known.key_s is None else replace(expected, key_s=known.key_s - now))
        return commands, batches

    def _soon(self, plan: Plan) -> Mapping[str, int]:
        """Units of a plan that are needed before the next review; running work has its units anyway."""
        if math.isinf(self.ways.ahead_s):
            return plan.units
        cold_s = max((self._cold_start_s.get(pool, 0.0) for pool in plan.units), default=0.0)
        until_s = max(self.ways.ahead_s, self.ways.review_s) + cold_s
        needed = needed_within(plan, until_s)
        return {pool: min(units, needed[pool]) for pool, units in plan.units.items()}

    def _steadied(self, now: float, pool: str, wanted: int) -> int:
        held = self._steady.setdefault(pool, Steady()).target(now, wanted, self._hold_s(pool))
        return min(held, self._ceiling(pool))

    def _reason(self, pool: str, event: str, wish: Wish, found: Relaxed) -> Reason:
        plan, ceiling, floor = found.plan, self._ceiling(pool), self._floor(pool)
        if wish.tasks:
            return reasons.no_history(pool, event, sorted(wish.tasks), wish.unknown, wish.soon, ceiling, floor)
        if pool not in plan.units:
            return reasons.idle(event, ceiling, floor)
        units, fewer = plan.units[pool], None
        if found.missed is not None:
            return reasons.not_enough(pool, event, found.batches, found.missed, units, ceiling, floor)
        if units and self.ways.explains:
            fewer = simulate(found.batches, {**plan.units, pool: units - 1}, strictness=found.strictness)
        return reasons.searched(pool, event, found.batches, units, plan.outcome, fewer, ceiling, floor, found.part)

    # ---- what is known ---------------------------------------------------------------------------------------------

    def _ceiling(self, pool: str) -> int:
        has = self._capacity.get(pool, 0)
        return min(has, self.ceilings.get(pool, has))

    def _floor(self, pool: str) -> int:
        return min(self.floors.get(pool, 0), self._ceiling(pool))

    def _may_grow(self, pool: str) -> bool:
        return math.isfinite(self.ways.review_s) and self.targets.get(pool, 0) < self._ceiling(pool)

    def _all_overdue(self, now: float) -> dict[str, int]:
        """By pool that could hold more: requests that wait longer than the plan permits."""
        pools = [pool for pool in self._capacity if self._may_grow(pool)]
        return {pool: sum(one.overdue(now, self._strictness, pool) for one in self._open.values()) for pool in pools}

    def _hold_s(self, pool: str) -> float:
        return max(self.ways.hold_s, self._cold_start_s.get(pool, 0.0)) if self.ways.hold_s else 0.0

    def _wants(self, known: OpenBatchState, now: float) -> bool:
        """Return whether its requests arrive, or are expected so soon that its pools must be warmed up."""
        return known.batch.first_arrival_at is not None or now >= self._warm_s(known)

    def _warm_s(self, known: OpenBatchState) -> float:
        """Time from which a batch wants units, unless its first request arrives earlier. Without history: at once."""
        if known.history is not None and not self.ways.hints:
            return math.inf
        cold_s = max(self._cold_start_s.get(stage.drawn_from, 0.0) for stage in known.batch.stages)
        return known.batch.opened_at + max(0.0, known.earliest_gap_s - cold_s)
