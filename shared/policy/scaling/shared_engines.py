"""Engines that several requests share, in the search for the fewest units.

SIMULATE gives each request units of its own. An engine of `degree` GPUs executes up to `concurrency` requests, so a
request takes degree / concurrency GPUs. Here a GPU of such a pool is a number of equal *slots*, of which each request
takes a whole number, and the search runs over slots. Afterwards the schedule that it found is counted in engines: at
each moment each service needs ceil(requests / concurrency) of them.

Laws (tests/shared/policy/scaling/test_shared_engines.py): a plan counted in engines can execute the schedule that was
found, if requests fill engines; without shared engines nothing changes.

Restores are not simulated. So a plan has GPUs for all services that work at one moment, and no time for swaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from shared.policy.scaling.chunked_pools import Services, concurrency_of
from shared.policy.scaling.list_scheduling import Counts, Floats
from shared.policy.scaling.quota_supply import Supply
from shared.policy.scaling.relaxation import RelaxedPlan, search_relaxed
from shared.policy.scaling.search import Plan
from shared.policy.scaling.workload import ExpectedBatch, Stage

MOST_SLOTS: Final = 4096
"""Most slots of a GPU. With more different concurrencies, requests are rounded up to these."""
_NO_SERVICES: Final[Services] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SharedEngines:
    """Slots of the pools whose engines are shared."""

    services: Mapping[str, Services] = field(default_factory=dict)
    """By pool of chunks: its model services."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """By pool: slots of a GPU. Pools without shared engines are missing."""

    batches: tuple[ExpectedBatch, ...] = ()
    """Open batches, as they were expected."""

    @classmethod
    def of(cls, batches: Iterable[ExpectedBatch], services: Mapping[str, Services]) -> SharedEngines:
        """Return the slots that fit the concurrencies of all stages."""
        slots, expected = dict[str, int](), tuple(batches)
        for stage in (stage for batch in expected for stage in batch.stages):
            share = concurrency_of(stage, services.get(stage.drawn_from, _NO_SERVICES))
            if share > 1:
                pool = stage.drawn_from
                slots[pool] = min(MOST_SLOTS, math.lcm(slots.get(pool, 1), share))
        return cls(services, slots, expected)

    def search(
        self,
        ceilings: Mapping[str, int],
        *,
        strictness: float,
        trade: bool,
        near: Mapping[str, int] | None,
        supply: Supply,
    ) -> RelaxedPlan:
        """Search as `search_relaxed`, over slots. The plan has units of engines; its input and schedule have slots."""
        guess = None if near is None else self.slots_of(near)
        found = search_relaxed(
            self.in_slots(), self.slots_of(ceilings), strictness=strictness, trade=trade, near=guess, supply=supply
        )
        if not self.slots:
            return found
        used = self.used(found.plan)
        units = {pool: min(ceilings.get(pool, 0), used.get(pool, count)) for pool, count in found.plan.units.items()}
        return replace(found, plan=replace(found.plan, units=units))

    def in_slots(self) -> tuple[ExpectedBatch, ...]:
        """Return the batches with stages that take slots of these pools."""
        if not self.slots:
            return self.batches
        return tuple(replace(batch, stages=tuple(map(self._stage, batch.stages))) for batch in self.batches)

    def _stage(self, stage: Stage) -> Stage:
        slots = self.slots.get(stage.drawn_from)
        if slots is None:
            return stage
        share = self._share(stage)
        return replace(stage, units=math.ceil(stage.units * slots / share), worker_cost=stage.worker_cost / share)

    def _share(self, stage: Stage) -> int:
        return concurrency_of(stage, self.services.get(stage.drawn_from, _NO_SERVICES))

    def slots_of(self, units: Mapping[str, int]) -> dict[str, int]:
        """Return units by pool, those of these pools in slots."""
        return {pool: count * self.slots.get(pool, 1) for pool, count in units.items()}

    def used(self, plan: Plan, until_s: float = math.inf) -> dict[str, int]:
        """Return the units of the engines that a schedule uses at once before a moment, by pool with slots.

        Args:
            plan: of the batches in slots, whose clock begins now.
            until_s: that moment.

        Costs a sort of the visits that begin until then.
        """
        inputs, starts = plan.inputs, plan.schedule.starts_s
        begun, found = (starts <= until_s) & np.isfinite(starts), dict[str, int]()
        for pool in self.slots:
            mine = np.flatnonzero(begun & (inputs.visits["pool"] == inputs.pools.index(pool)))
            steps = np.stack([inputs.visits["owner"][mine], inputs.stage[mine]])
            distinct, sort = np.unique(steps, axis=1, return_inverse=True)
            stages = [self.batches[owner].stages[place] for owner, place in distinct.T.tolist()]
            ends = starts[mine] + inputs.visits["lasts_s"][mine]
            found[pool] = self._most_at_once(stages, sort.reshape(-1), starts[mine], ends)
        return found

    def _most_at_once(self, stages: Sequence[Stage], which: Counts, starts: Floats, ends: Floats) -> int:
        """Most units of engines in use at once. At one moment, ends precede starts (`targets.peak_units`).

        `which`: by visit, the number of its stage.
        """
        ends = np.where(ends > starts, ends, np.nextafter(starts, np.inf))
        moments = np.concatenate([ends, starts])
        order = np.argsort(moments, kind="stable")
        changes = np.concatenate([-np.ones(len(ends), np.int64), np.ones(len(starts), np.int64)])
        sorts: dict[tuple[str, int, int], int] = {}
        sort = np.array([sorts.setdefault(self._sort(one), len(sorts)) for one in stages], np.int64)[which]
        both, units = np.concatenate([sort, sort]), np.zeros(len(moments), np.int64)
        for (_, degree, share), number in sorts.items():
            running = np.cumsum(np.where(both == number, changes, 0)[order])
            units += -(-running // share) * degree
        return int(units.max(initial=0))

    def _sort(self, stage: Stage) -> tuple[str, int, int]:
        """Requests of one sort share engines: those of a service and degree. Others share with nobody."""
        share = self._share(stage)
        return (stage.service, stage.units, share) if share > 1 else ("", stage.units, 1)
