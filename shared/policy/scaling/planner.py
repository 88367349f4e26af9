"""The planner's decisions: stimulus in, targets out (DistRS §5). The service and the replay run this same object.

It decides when a batch's first request arrives or is expected soon, when a batch ends, when nodes join or leave, when
requests wait that were expected later, and every `review_s` while batches are open. Algorithm 2 collects the remaining
work (collection.py), Algorithm 1 searches for the fewest units (search.py), and the part needed before the next review
is held (targets.py). A task without history requests enough units for a zero queue; without an open batch a pool
returns to its floor.

Between the opening hint and the first arrival, a batch requests no units until its pools have to be warmed up. That is
one cold start before the earliest expected first request, by recent batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from shared.policy.scaling import reasons
from shared.policy.scaling.chunked_pools import Services, chunk_of, cold_start_of, whole_chunks
from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.expectations import expect
from shared.policy.scaling.open_batch import OpenBatchState
from shared.policy.scaling.pacing import LimitedStage
from shared.policy.scaling.quota_supply import ObservedQuota, Supply, supply_at
from shared.policy.scaling.reasons import Reason
from shared.policy.scaling.relaxation import RelaxedPlan
from shared.policy.scaling.residencies import residencies_wanted
from shared.policy.scaling.search import ExpectedBatch, Plan, Stage, simulate
from shared.policy.scaling.shared_engines import SharedEngines
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchesObserved,
    BatchRemoved,
    Command,
    FirstRequestArrived,
    NodesChanged,
    ProgressReported,
    PublishTarget,
    QuotasObserved,
    Stimulus,
    TargetsRestored,
    TimerFired,
)
from shared.policy.scaling.targets import PoolDemand, StabilizedTarget, needed_within, pool_demand
from shared.policy.scaling.workload import OpenedBatch


@dataclass(slots=True)
class Planner:
    """Open batches, the histories of their tasks, and the capacities of pools. Memory is bounded by the open
    batches.
    """

    config: PlannerConfig = field(default_factory=PlannerConfig)
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
    _services: Mapping[str, Services] = field(default_factory=dict)
    """By pool of chunks: its model services."""
    _engines: SharedEngines = field(default_factory=SharedEngines)
    """Shared engines of the last decision."""
    _quotas: Mapping[str, ObservedQuota | None] = field(default_factory=dict)
    _supply: Supply = field(default_factory=dict)
    """Quotas at the last decision."""
    _limited: Sequence[LimitedStage] = ()
    _stabilized: dict[str, StabilizedTarget] = field(default_factory=dict)
    _published: set[str] = field(default_factory=set)
    """Pools of which this process has published a target."""
    _decided_s: float = -math.inf
    _planned: Mapping[str, int] = field(default_factory=dict)
    """Units that the last search found, plus those for tasks without history."""
    _found_units: Mapping[str, int] = field(default_factory=dict)
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
            case BatchAdded():
                return self._batch_added(now, stimulus)
            case FirstRequestArrived():
                return self._first_request_arrived(now, stimulus)
            case ProgressReported():
                state = self._open.get(stimulus.batch)
                if state is not None and self.config.progress:
                    state.report(stimulus)
                return []
            case BatchRemoved():
                return self._batch_removed(now, stimulus)
            case BatchesObserved():
                return self._batches_observed(now, stimulus)
            case QuotasObserved():
                self._quotas = stimulus.quotas
                return []
            case NodesChanged():
                self._cold_start_s, self._services = dict(stimulus.cold_start_s), dict(stimulus.services)
                if stimulus.units == self._capacity:
                    return []
                self._capacity = dict(stimulus.units)
                return self._decide(now, "nodes have come or gone", ())
            case TargetsRestored():
                self.targets = dict(stimulus.targets)
                return []
            case TimerFired():
                return self._decide(now, "review", ()) if now >= self.wake_s() else []

    def wake_s(self) -> float:
        """Time of the next review or change without a stimulus; infinite: never."""
        reviewed = any(self._is_active(one, self._decided_s) for one in self._open.values())
        moments = [self._decided_s + self.config.review_s] if reviewed else []
        moments += [self._warm_up_s(one) for one in self._open.values() if not self._is_active(one, self._decided_s)]
        moments += [one.decreases_at_s(self._stabilization_s(pool)) for pool, one in self._stabilized.items()]
        return min(moments, default=math.inf)

    def next_observation_s(self, now: float) -> float:
        """Time of the next snapshot without a stimulus, because requests may wait unexpectedly. Infinite: never."""
        if any(self.targets.get(pool, units) < units for pool, units in self._planned.items()):
            return now + self.config.surprise_s
        latest_s = [
            at
            for state in self._open.values()
            for stage, at in zip(state.batch.stages, state.latest_starts_s(self._strictness), strict=True)
            if self._may_grow(stage.drawn_from)
        ]
        return max(now + self.config.surprise_s, min(latest_s, default=math.inf))

    @property
    def open_batches(self) -> list[str]:
        """Names of the open batches."""
        return list(self._open)

    @property
    def quotas_named(self) -> set[str]:
        """Names of the quotas that the stages of open batches take from."""
        return {name for one in self._open.values() for stage in one.batch.stages for name in stage.quotas}

    def uses_history_of(self, ended: OpenedBatch) -> bool:
        """Return whether another batch of the same work is open, so that the history of the ended batch applies to
        it.
        """
        return any(one.batch.batch != ended.batch and one.batch.same_work(ended) for one in self._open.values())

    def expectations(self, now: float) -> list[ExpectedBatch]:
        """Expected remaining work of open batches with history, of those that need units; drawn again at each call."""
        active = [state for state in self._open.values() if self._is_active(state, now)]
        return [
            state.expected(now, self._random, paced=self.config.paced) for state in active if state.history is not None
        ]

    def tokens_per_s(self, batch: str) -> float | None:
        """Token rate of a batch's rollout, as last reported."""
        state = self._open.get(batch)
        return None if state is None else state.tokens_per_s

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for pool in self._published & self._capacity.keys():
            assert self._floor(pool) <= self.targets[pool] <= self._ceiling(pool), f"target of {pool} out of bounds"
            if not any(state.draws_from(pool) for state in self._open.values()):
                falls = self._stabilized[pool].decreases_at_s(self._stabilization_s(pool))
                assert self.targets[pool] == self._floor(pool) or falls < math.inf, f"{pool} is idle above its floor"

    # ---- stimuli ---------------------------------------------------------------------------------------------------

    def _batch_added(self, now: float, stimulus: BatchAdded) -> list[Command]:
        batch = stimulus.batch
        state = self._open.get(batch.batch)
        if state is None:
            state = self._open[batch.batch] = OpenBatchState(batch)
        state.learn(stimulus.past, self.config.window)  # after a repeated delivery, newer information is kept
        if stimulus.restored or not self._is_active(state, now):
            return []
        return self._decide(now, f"batch {batch.batch} opened", batch.stages)

    def _first_request_arrived(self, now: float, stimulus: FirstRequestArrived) -> list[Command]:
        """Decide again: now T (with history) and the overlap of open batches are known."""
        state = self._open.get(stimulus.batch)
        if state is None:
            return []
        state.batch = replace(state.batch, first_arrival_at=stimulus.at)
        return self._decide(now, f"first request of batch {stimulus.batch} came", ())

    def _batches_observed(self, now: float, stimulus: BatchesObserved) -> list[Command]:
        for batch, observed in stimulus.batches.items():
            if batch in self._open:
                self._open[batch].observed = observed
        if now < self._decided_s + self.config.surprise_s:
            return []
        waited_for = {
            stage.drawn_from
            for batch in stimulus.batches.keys() & self._open.keys()
            for stage, waits in zip(self._open[batch].batch.stages, stimulus.batches[batch].queuing, strict=False)
            if waits and stage.name not in self._open[batch].limited
        }
        early = {pool for pool in waited_for if self.targets.get(pool, 0) < self._planned.get(pool, 0)}
        early |= {pool for pool, count in self._all_overdue(now).items() if count > self._overdue.get(pool, 0)}
        return self._decide(now, f"requests wait for {', '.join(sorted(early))}", ()) if early else []

    def _batch_removed(self, now: float, stimulus: BatchRemoved) -> list[Command]:
        gone = self._open.pop(stimulus.batch, None)
        ended = stimulus.past[-1].opened if stimulus.past else None
        for other in self._open.values():
            if ended is not None and other.batch.same_work(ended):
                other.learn(stimulus.past, self.config.window)
        return [] if gone is None else self._decide(now, f"batch {stimulus.batch} ended", gone.batch.stages)

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _decide(self, now: float, event: str, stages: Sequence[Stage]) -> list[Command]:
        """Decide the targets of all pools. A target is published if it changes, if `stages` draw from the pool, or if
        it is the pool's first.
        """
        concerned = {stage.drawn_from for stage in stages}
        self._decided_s = now
        self._supply = supply_at(now, self._quotas)
        active = [state for state in self._open.values() if self._is_active(state, now)]
        commands, batches, self._limited = expect(
            now, active, self._random, paced=self.config.paced, supply=self._supply
        )
        config, ceilings = self.config, {pool: self._ceiling(pool) for pool in self._capacity}
        near = self._found_units if math.isfinite(config.review_s) else None
        self._engines = SharedEngines.of(batches, self._services)
        found = self._engines.search(
            ceilings, strictness=config.strictness, trade=config.trade, near=near, supply=self._supply
        )
        self._found_units, self._strictness = found.plan.units, found.strictness
        self._overdue = self._all_overdue(now)
        soon, until_s = self._soon(found.plan), max(config.look_ahead_s, config.review_s)
        demands = {
            pool: pool_demand(
                pool, active, found.plan, soon, ceilings[pool], self._supply, until_s, self._services.get(pool)
            )
            for pool in sorted(self._capacity)
        }
        self._planned = {pool: demand.planned + demand.unknown for pool, demand in demands.items()}
        for pool, demand in demands.items():
            chunk = chunk_of((one.batch.stages for one in active), pool) if pool in self._services else 1
            needed = whole_chunks(max(demand.units, self._floor(pool)), chunk, self._ceiling(pool))
            units, previous = self._stabilize(now, pool, needed), self.targets.get(pool)
            if units == previous and pool in self._published and pool not in concerned:
                continue
            self.targets[pool] = units
            self._published.add(pool)
            reason = self._reason(pool, event, demand, found).with_held(units, demand.planned, demand.soon)
            commands.append(PublishTarget(pool, previous, units, reason, chunk))
        return commands + residencies_wanted(active)

    def _soon(self, plan: Plan) -> Mapping[str, int]:
        """Units of a plan that are needed before the next review; running work has its units anyway."""
        if math.isinf(self.config.look_ahead_s):
            return plan.units
        cold_s = max((self._cold_start_s.get(pool, 0.0) for pool in plan.units), default=0.0)
        until_s = max(self.config.look_ahead_s, self.config.review_s) + cold_s
        needed = needed_within(plan, until_s) | self._engines.used(plan, until_s)
        return {pool: min(units, needed[pool]) for pool, units in plan.units.items()}

    def _stabilize(self, now: float, pool: str, needed: int) -> int:
        held = self._stabilized.setdefault(pool, StabilizedTarget()).target(now, needed, self._stabilization_s(pool))
        return min(held, self._ceiling(pool))

    def _reason(self, pool: str, event: str, demand: PoolDemand, found: RelaxedPlan) -> Reason:
        limited = [one.text for one in self._limited if one.stage.drawn_from == pool]
        return self._found_reason(pool, event, demand, found).with_limits([*limited, *demand.limits])

    def _found_reason(self, pool: str, event: str, demand: PoolDemand, found: RelaxedPlan) -> Reason:
        plan, ceiling, floor = found.plan, self._ceiling(pool), self._floor(pool)
        if demand.tasks:
            return reasons.no_history(pool, event, sorted(demand.tasks), demand.unknown, demand.soon, ceiling, floor)
        if pool not in plan.units:
            return reasons.idle(event, ceiling, floor)
        units, fewer = plan.units[pool], None
        if found.missed is not None:
            return reasons.not_enough(pool, event, found.batches, found.missed, units, ceiling, floor)
        if units and self.config.explains and pool not in self._engines.slots:
            less = self._engines.slots_of({**plan.units, pool: units - 1})
            fewer = simulate(found.batches, less, strictness=found.strictness, supply=self._supply)
        quotas = {one.batch for one in self._limited}
        batches = found.batches
        return reasons.searched(pool, event, batches, units, plan.outcome, fewer, ceiling, floor, found.part, quotas)

    # ---- state -----------------------------------------------------------------------------------------------------

    def _ceiling(self, pool: str) -> int:
        has = self._capacity.get(pool, 0)
        return min(has, self.ceilings.get(pool, has))

    def _floor(self, pool: str) -> int:
        return min(self.floors.get(pool, 0), self._ceiling(pool))

    def _may_grow(self, pool: str) -> bool:
        return math.isfinite(self.config.review_s) and self.targets.get(pool, 0) < self._ceiling(pool)

    def _all_overdue(self, now: float) -> dict[str, int]:
        """By pool that could hold more: requests that wait longer than the plan permits."""
        pools = [pool for pool in self._capacity if self._may_grow(pool)]
        return {pool: sum(one.overdue(now, self._strictness, pool) for one in self._open.values()) for pool in pools}

    def _stabilization_s(self, pool: str) -> float:
        return (
            max(self.config.stabilization_s, self._cold_start_s.get(pool, 0.0)) if self.config.stabilization_s else 0.0
        )

    def _is_active(self, state: OpenBatchState, now: float) -> bool:
        """Return whether its requests arrive, or are expected so soon that its pools must be warmed up."""
        return state.batch.first_arrival_at is not None or now >= self._warm_up_s(state)

    def _warm_up_s(self, state: OpenBatchState) -> float:
        """Time from which a batch needs units, unless its first request arrives earlier. Without history: at once."""
        if state.history is not None and not self.config.hints:
            return math.inf
        cold_s = max(cold_start_of(stage, self._services, self._cold_start_s) for stage in state.batch.stages)
        return state.batch.opened_at + max(0.0, state.earliest_gap_s - cold_s)
