"""What the planner decides: stimulus in, targets out (DistRS §5). The service and the replay run this same object.

When a batch's first request comes or is about to, when a batch ends, when nodes come or go, when requests wait that
were expected later, and every `review_s` while batches are open: Algorithm 2 collects what they still need
(collection.py), Algorithm 1 searches how few units do (scaling.py), and of those what is needed before the next look is
held (lookahead.py, steady.py). A task without history asks for every unit (zero queue); without an open batch a pool
falls back to its floor.

Between the opening hint and the first arrival a batch asks for nothing, until it is time to warm its pools up: a cold
start before the earliest moment at which the first request has come of late.
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
    """Open batches, what their tasks did of late, what pools can hold. Memory is bounded by the open batches."""

    ways: PlannerConfig = field(default_factory=PlannerConfig)
    floors: Mapping[str, int] = field(default_factory=dict)
    ceilings: Mapping[str, int] = field(default_factory=dict)
    """Set by hand; a pool holds no more than its nodes have anyway."""
    seed: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    """As decided last, by pool."""
    _random: Random = field(init=False)
    _open: dict[str, OpenBatchState] = field(default_factory=dict)
    _capacity: dict[str, int] = field(default_factory=dict)
    _cold_start_s: dict[str, float] = field(default_factory=dict)
    _steady: dict[str, Steady] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    """Pools of which this process has published a target."""
    _decided_s: float = -math.inf
    _planned: Mapping[str, int] = field(default_factory=dict)
    """Units that the last search found, and those for tasks without history."""
    _found: Mapping[str, int] = field(default_factory=dict)
    """Units that the last search found."""
    _strictness: float = 0.0
    """Of that search."""
    _overdue: Mapping[str, int] = field(default_factory=dict)
    """By pool, at the last decision: requests that waited beyond their latest start."""

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def handle(self, now: float, stimulus: Stimulus) -> list[Command]:
        """Take one stimulus; time never goes back."""
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
        """When it wants to be woken if nothing else happens; infinite: never."""
        active = any(self._wants(one, self._decided_s) for one in self._open.values())
        moments = [self._decided_s + self.ways.review_s] if active else []
        moments += [self._warm_s(one) for one in self._open.values() if not self._wants(one, self._decided_s)]
        moments += [steady.falls_at(self._hold_s(pool)) for pool, steady in self._steady.items()]
        return min(moments, default=math.inf)

    def look_s(self, now: float) -> float:
        """When it wants a look if nothing else happens: something may wait that should not. Infinite: never."""
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
        """Is another batch of the same work open, which a batch that has ended tells of?"""
        return any(one.batch.batch != ended.batch and one.batch.same_work(ended) for one in self._open.values())

    def expectations(self, now: float) -> list[ExpectedBatch]:
        """What open batches with history will need yet, of those that want units; drawn anew at each call."""
        wanting = [known for known in self._open.values() if self._wants(known, now)]
        return [
            known.expected(now, self._random, paced=self.ways.paced) for known in wanting if known.history is not None
        ]

    def tokens_per_s(self, batch: str) -> float | None:
        """How fast a batch's samples are generated, as last reported."""
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
        known.learn(stimulus.past, self.ways.window)  # where it is told again, what came meanwhile stays known
        if stimulus.restored or not self._wants(known, now):
            return []
        return self._decide(now, f"batch {batch.batch} opened", batch.stages)

    def _first_came(self, now: float, stimulus: FirstCame) -> list[Command]:
        """T is known where there is history, and how open batches overlap."""
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
        """Targets of all pools: said where they change, where `stages` draw from, and once for each pool."""
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
        """Expectations of the batches with history, in the dispatcher's order, and where that has changed."""
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
        """What of a plan is needed before there is another look at it; what runs already has its units anyway."""
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
        """By pool that could hold more: requests that the plan does not let wait so long."""
        pools = [pool for pool in self._capacity if self._may_grow(pool)]
        return {pool: sum(one.overdue(now, self._strictness, pool) for one in self._open.values()) for pool in pools}

    def _hold_s(self, pool: str) -> float:
        return max(self.ways.hold_s, self._cold_start_s.get(pool, 0.0)) if self.ways.hold_s else 0.0

    def _wants(self, known: OpenBatchState, now: float) -> bool:
        """Its requests come, or will so soon that its pools are to be warmed up."""
        return known.batch.first_arrival_at is not None or now >= self._warm_s(known)

    def _warm_s(self, known: OpenBatchState) -> float:
        """When a batch begins to want units, unless its first request comes before. Without history: at once."""
        if known.history is not None and not self.ways.hints:
            return math.inf
        cold_s = max(self._cold_start_s.get(stage.drawn_from, 0.0) for stage in known.batch.stages)
        return known.batch.opened_at + max(0.0, known.earliest_gap_s - cold_s)
