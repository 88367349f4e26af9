"""A slow second SIMULATE with quotas, whose amounts are those of the real ledger, and open batches to compare with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from shared.policy.model.quotas import Level, QuotaHold, QuotaLimits, Rate
from shared.policy.order.ebf import EbfQueue
from shared.policy.resources.quotas import Quotas
from shared.policy.scaling.quota_supply import ObservedQuota, Supply, supply_at
from shared.policy.scaling.search import ExpectedBatch, Stage
from tests.shared.policy.scaling.scaling_oracle import Oracle, Visit, amid

Observed = Mapping[str, ObservedQuota | None]


class QuotaOracle(Oracle):
    """The rules of the kernel, written again: one EBF queue for each pool and set of quotas, and the ledger."""

    def __init__(self, batches: Sequence[ExpectedBatch], units: Mapping[str, int], observed: Observed) -> None:
        self.observed = observed
        self.ledger = Quotas({name: one.limits for name, one in observed.items() if one is not None})
        for name, one in observed.items():
            for rate, level in zip(one.limits.rates, one.levels, strict=True) if one is not None else ():
                self.ledger.restore_level(name, rate.period_s, level)
        self.lanes: dict[tuple[str, tuple[str, ...]], EbfQueue[Visit]] = {}
        self.runs = False
        super().__init__(batches, units)

    def amounts(self, visit: Visit) -> dict[str, float]:
        return {name: amount for name, amount in self.stage(visit).quotas.items() if name in self.observed}

    def begin(self, visit: Visit, now: float) -> None:
        super().begin(visit, now)
        hold = QuotaHold(repr(visit), 0, 1, "n", "1", now, self.amounts(visit))
        if self.runs:
            self.ledger.take(hold, self.running[visit])
        else:
            self.ledger.restore(hold, self.running[visit])

    def run(self, pending: dict[Visit, float]) -> None:
        self.runs, refilled = True, math.inf
        while pending or self.running or refilled < math.inf:
            now = min([*pending.values(), *self.running.values(), refilled])
            for visit in [visit for visit, end in self.running.items() if end <= now]:
                del self.running[visit]
                self.end[visit] = now
                self.free[self.stage(visit).drawn_from] += self.stage(visit).units
                self.ledger.settle(f"{visit!r}/0/1")
                after = self.following(visit)
                if after is not None:
                    self.ready[after] = pending[after] = now
            for visit in sorted(visit for visit, ready in pending.items() if ready <= now):
                del pending[visit]
                lane = (self.stage(visit).drawn_from, tuple(sorted(self.amounts(visit))))
                self.lanes.setdefault(lane, EbfQueue()).push(self.key(visit), visit)
            refilled = self.serve(now)

    def serve(self, now: float) -> float:
        """Grant what fits. Returns the next refill that a head waits for."""
        refilled, done = math.inf, set[object]()
        kept_pools, kept_quotas = set[str](), set[str]()
        while heads := [(queue.peek(), lane) for lane, queue in self.lanes.items() if queue and lane not in done]:
            (_, visit), lane = min(heads)
            amounts, pool = self.amounts(visit), lane[0]
            lacking = {name for name, amount in amounts.items() if not self.ledger.fits({name: amount}, now)}
            if lacking or kept_quotas & amounts.keys():
                done.add(lane)
                times = [self.ledger.refilled_at({name: amounts[name]}, now) for name in lacking]
                refilled = min([refilled, *(at_s for at_s in times if at_s > now)])
                kept_quotas |= lacking
            elif pool in kept_pools or self.free[pool] < self.stage(visit).units:
                done.add(lane)
                kept_pools.add(pool)
            else:
                self.lanes[lane].pop()
                self.begin(visit, now)
        return refilled

    def delays(self) -> dict[str, float]:
        ends = {name: [end for visit, end in self.end.items() if visit[0] == name] for name in self.batches}
        stuck = {visit[0] for queue in self.lanes.values() for visit in queue}
        return {
            name: math.inf if name in stuck else max(0.0, max(ends[name], default=0.0) - batch.completion_s)
            for name, batch in self.batches.items()
        }


def supply(observed: Observed) -> Supply:
    return supply_at(0.0, observed)


rates = st.builds(
    Rate,
    st.sampled_from([1.0, 2.0, 4.0]),
    st.sampled_from([None, 1.0, 2.0, 8.0]),
    st.sampled_from([None, 1.0, 2.0]),
    st.just(""),
)


@st.composite
def observed_quotas(draw: st.DrawFn, *, finite: bool = False) -> dict[str, ObservedQuota | None]:
    """Quotas `a` and `b`. Refills are binary fractions, so nothing is rounded. `finite`: each gives 2 at some time."""
    found: dict[str, ObservedQuota | None] = {}
    for name in ("a", "b"):
        drawn = draw(st.lists(rates, max_size=2, unique_by=lambda rate: rate.period_s))
        most = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0]), max_size=1))
        if finite:
            drawn = [rate._replace(burst=2.0) for rate in drawn if rate.period_s]
            most = [max(2.0, one) for one in most]
        levels = tuple(Level(draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])), 0.0) for _ in drawn)
        found[name] = ObservedQuota(QuotaLimits(tuple(most), tuple(drawn)), levels)
        if not finite and draw(st.integers(0, 9)) == 0:
            found[name] = None
    return found


amounts = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1.0, 2.0]), max_size=2)


@st.composite
def amid_quotas(draw: st.DrawFn) -> list[ExpectedBatch]:
    """Batches in their midst, whose stages take from quotas."""
    open_batches = draw(amid())

    def taking(stage: Stage) -> Stage:
        return replace(stage, quotas=draw(amounts))

    return [replace(batch, stages=tuple(taking(stage) for stage in batch.stages)) for batch in open_batches]
